/* ISA-L's side of the codec bench: reads "e NS" or "d NS", encodes or decodes for
 * so long, and answers with the time of one packet in ns. As in the bench itself
 * packets take turns, decoding inverts a matrix for each pattern of erasures, and
 * the clock is looked at ever more rarely. */
#include <isa-l/erasure_code.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CELLS = 255, PATTERNS = 4096, RING_BYTES = 256 << 10 };

static int data, extra, len, packets;
static unsigned char *ring, *restored, *patterns;
static unsigned char matrix[CELLS * CELLS], encode_tables[32 * CELLS * CELLS];
static unsigned char part[CELLS * CELLS], inverse[CELLS * CELLS], rows[CELLS * CELLS];
static unsigned char decode_tables[32 * CELLS * CELLS];

static uint64_t now_ns(void)
{
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000000000ull + at.tv_nsec;
}

static unsigned char *cell(int packet, int index)
{
	return ring + ((size_t)packet * (data + extra) + index) * len;
}

static void encode(int packet, int call)
{
	unsigned char *in[CELLS], *out[CELLS];
	(void)call;
	for (int i = 0; i < data; i++)
		in[i] = cell(packet, i);
	for (int i = 0; i < extra; i++)
		out[i] = cell(packet, data + i);
	ec_encode_data(len, data, extra, encode_tables, in, out);
}

static int is_missing(const unsigned char *missing, int index)
{
	for (int i = 0; i < extra; i++)
		if (missing[i] == index)
			return 1;
	return 0;
}

static void decode(int packet, int call)
{
	const unsigned char *missing = patterns + (size_t)(call % PATTERNS) * extra;
	unsigned char *in[CELLS], *out[CELLS];
	int used = 0;

	for (int i = 0; i < data + extra && used < data; i++) {
		if (is_missing(missing, i))
			continue;
		memcpy(part + used * data, matrix + i * data, data);
		in[used++] = cell(packet, i);
	}
	if (gf_invert_matrix(part, inverse, data))
		exit(2);
	for (int i = 0; i < extra; i++) {
		memcpy(rows + i * data, inverse + missing[i] * data, data);
		out[i] = restored + (size_t)i * len;
	}
	ec_init_tables(data, extra, rows, decode_tables);
	ec_encode_data(len, data, extra, decode_tables, in, out);
}

static void check(void)
{
	for (int i = 0; i < packets; i++) {
		encode(i, 0);
		decode(i, i);
		for (int j = 0; j < extra; j++) {
			int lost = patterns[(size_t)(i % PATTERNS) * extra + j];
			if (memcmp(restored + (size_t)j * len, cell(i, lost), len))
				exit(3);
		}
	}
}

static void set_up(void)
{
	size_t bytes;

	packets = RING_BYTES / (data * len);
	packets = packets > 0 ? packets : 1;
	bytes = (size_t)packets * (data + extra) * len;
	ring = malloc(bytes);
	restored = malloc((size_t)extra * len);
	patterns = malloc((size_t)PATTERNS * extra);
	if (!ring || !restored || !patterns)
		exit(2);
	for (size_t i = 0; i < bytes; i++)
		ring[i] = rand();
	for (int i = 0; i < PATTERNS; i++) {
		unsigned char *missing = patterns + (size_t)i * extra;
		for (int found = 0; found < extra;) {
			int drawn = rand() % data, known = 0;
			for (int j = 0; j < found; j++)
				known |= missing[j] == drawn;
			if (!known)
				missing[found++] = drawn;
		}
	}
	gf_gen_cauchy1_matrix(matrix, data + extra, data);
	ec_init_tables(data, extra, matrix + data * data, encode_tables);
}

int main(int argc, char **argv)
{
	char side;
	unsigned long long turn_ns;

	if (argc != 4)
		return 2;
	data = atoi(argv[1]), extra = atoi(argv[2]), len = atoi(argv[3]);
	if (data < extra || extra < 1 || data + extra > CELLS || len < 1)
		return 2;
	set_up();
	check();
	while (scanf(" %c %llu", &side, &turn_ns) == 2) {
		uint64_t begun = now_ns(), calls = 0, until_look = 1, passed;
		do {
			for (uint64_t i = 0; i < until_look; i++, calls++)
				(side == 'e' ? encode : decode)(calls % packets, calls % (1 << 30));
			passed = now_ns() - begun;
			until_look = calls / 2 > 0 ? calls / 2 : 1;
		} while (passed < turn_ns);
		printf("%.3f\n", (double)passed / calls);
		fflush(stdout);
	}
	return 0;
}
