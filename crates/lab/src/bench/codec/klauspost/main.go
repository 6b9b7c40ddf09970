// klauspost/reedsolomon's side of the codec bench: reads "e NS" or "d NS", encodes or
// decodes for so long, and answers with the time of one packet in ns. As in the bench
// itself packets take turns, erasures follow random patterns, and the clock is looked
// at ever more rarely. One goroutine; the library's cache of inverses is on, as it is
// unless one turns it off.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/klauspost/reedsolomon"
)

const (
	patternCount = 4096
	ringBytes    = 256 << 10
)

type bench struct {
	encoder  reedsolomon.Encoder
	packets  [][][]byte
	patterns [][]int
	shards   [][]byte
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func number(index int) int {
	n, err := strconv.Atoi(os.Args[index])
	must(err)
	return n
}

func newBench(data, extra, length int) *bench {
	encoder, err := reedsolomon.New(data, extra, reedsolomon.WithMaxGoroutines(1))
	must(err)
	b := &bench{encoder: encoder, shards: make([][]byte, data+extra)}
	count := max(ringBytes/(data*length), 1)
	random := rand.New(rand.NewSource(1))
	ring := make([]byte, count*(data+extra)*length)
	random.Read(ring)
	for range count {
		packet := make([][]byte, data+extra)
		for i := range packet {
			packet[i], ring = ring[:length:length], ring[length:]
		}
		b.packets = append(b.packets, packet)
	}
	for range patternCount {
		b.patterns = append(b.patterns, random.Perm(data)[:extra])
	}
	return b
}

func (b *bench) encode(call int) {
	must(b.encoder.Encode(b.packets[call%len(b.packets)]))
}

// A shard of length 0 is missing and is restored in its place.
func (b *bench) decode(call int) {
	copy(b.shards, b.packets[call%len(b.packets)])
	for _, lost := range b.patterns[call%patternCount] {
		b.shards[lost] = b.shards[lost][:0]
	}
	must(b.encoder.ReconstructData(b.shards))
}

func (b *bench) check() {
	for i, packet := range b.packets {
		b.encode(i)
		var before [][]byte
		for _, shard := range packet {
			before = append(before, slices.Clone(shard))
		}
		for _, lost := range b.patterns[i%patternCount] {
			clear(packet[lost])
		}
		b.decode(i)
		if !slices.EqualFunc(before, packet, bytes.Equal) {
			os.Exit(3)
		}
	}
}

func timePerCall(turn time.Duration, call func(int)) float64 {
	begun, calls := time.Now(), 0
	for look := 1; ; look = max(calls/2, 1) {
		for range look {
			call(calls)
			calls++
		}
		if passed := time.Since(begun); passed >= turn {
			return float64(passed.Nanoseconds()) / float64(calls)
		}
	}
}

func main() {
	b := newBench(number(1), number(2), number(3))
	b.check()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var side string
		var turn int64
		_, err := fmt.Sscan(lines.Text(), &side, &turn)
		must(err)
		call := b.decode
		if side == "e" {
			call = b.encode
		}
		fmt.Printf("%.3f\n", timePerCall(time.Duration(turn), call))
	}
}
