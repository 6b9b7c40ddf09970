/* A server that answers each line with itself, until a client says "attack SEED MIX": from then on
 * a thread of it writes over the memory that it shares with its daemon, again and again. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER = 4096, ENTRY = 128, ENTRIES = 16384, CLIENTS = 64 };

static volatile uint64_t *words;
static size_t bytes;
static uint64_t state, mix;

static uint64_t draw(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static uint64_t number(void) {
    uint64_t any = draw();
    switch (any >> 61) {
    case 0: return any % 64;
    case 1: return ~(any % 64);
    case 2: return (any % (64 << 20)) & ~7ull;
    case 3: return 1ull << (any % 64);
    default: return any;
    }
}

static void *attack(void *unused) {
    size_t table = (size_t)ENTRIES * ENTRY;
    for (uint64_t turn = 0;; turn++) {
        size_t at;
        switch (mix ? mix : draw() % 4) {
        case 1: at = draw() % 1024; break;
        case 2: at = HEADER + draw() % (table / 256); break;
        case 3: at = HEADER + table + draw() % (bytes - HEADER - table); break;
        default: at = draw() % bytes; break;
        }
        words[at / 8] = number();
        if (turn % 64 == 0)
            usleep(1);
    }
    return unused;
}

/* The first mapping of memory without a file's name that is shared. */
static void find_memory(void) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        uintptr_t from, to;
        if (strstr(line, "/memfd:") && strstr(line, "rw-s") &&
            sscanf(line, "%lx-%lx", &from, &to) == 2 && !words) {
            words = (volatile uint64_t *)from;
            bytes = to - from;
        }
    }
    if (maps)
        fclose(maps);
}

static void hear(char *line) {
    pthread_t thread;
    unsigned long long seed, how;
    if (sscanf(line, "attack %llu %llu", &seed, &how) != 2 || words)
        return;
    state = seed * 0x9e3779b97f4a7c15ull | 1, mix = how;
    find_memory();
    if (words)
        pthread_create(&thread, NULL, attack, NULL);
}

int main(int count, char **words_said) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(atoi(words_said[2]))};
    struct pollfd all[CLIENTS] = {{.fd = socket(AF_INET, SOCK_STREAM, 0), .events = POLLIN}};
    int on = 1, used = count - 2;
    inet_pton(AF_INET, words_said[1], &own.sin_addr);
    setsockopt(all[0].fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(all[0].fd, (struct sockaddr *)&own, sizeof own) || listen(all[0].fd, 16))
        return 1;
    for (;;) {
        poll(all, used, -1);
        for (int i = used - 1; i > 0; i--) {
            char line[256] = {0};
            if (!all[i].revents)
                continue;
            ssize_t n = read(all[i].fd, line, sizeof line - 1);
            if (n <= 0) {
                close(all[i].fd);
                all[i] = all[--used];
                continue;
            }
            hear(line);
            if (write(all[i].fd, line, n) != n)
                continue;
        }
        if (all[0].revents && used < CLIENTS) {
            int client = accept(all[0].fd, NULL, NULL);
            if (client >= 0)
                all[used++] = (struct pollfd){.fd = client, .events = POLLIN};
        }
    }
}
