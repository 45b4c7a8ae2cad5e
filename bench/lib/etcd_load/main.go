// Loads etcd through its own client library, as its own benchmark tool does: so many
// clients share so many connections, and each waits for its answer before it asks again.
//
// Built against Debian's golang-etcd-server-dev:
//
//	GO111MODULE=off GOPATH=/usr/share/gocode go build -o etcd-load bench/lib/etcd_load/main.go
//
// Prints one JSON object: operations a second, and latencies in milliseconds.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math/rand"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/clientv3"
)

func main() {
	endpoints := flag.String("endpoints", "", "host:port, separated by commas")
	operation := flag.String("op", "put", "put, or get (linearizable)")
	connections := flag.Int("connections", 8, "how many connections")
	clients := flag.Int("clients", 64, "how many clients")
	total := flag.Int("total", 10000, "how many operations")
	valueBytes := flag.Int("value-bytes", 256, "length of a value")
	keys := flag.Int("keys", 100000, "over how many keys")
	flag.Parse()

	opened := make([]*clientv3.Client, *connections)
	for i := range opened {
		client, err := clientv3.New(clientv3.Config{
			Endpoints:   strings.Split(*endpoints, ","),
			DialTimeout: 5 * time.Second,
		})
		if err != nil {
			log.Fatal(err)
		}
		opened[i] = client
	}
	value := strings.Repeat("x", *valueBytes)
	each := (*total + *clients - 1) / *clients
	taken := make([][]time.Duration, *clients)
	began := time.Now()
	var all sync.WaitGroup
	for i := 0; i < *clients; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			client, random := opened[i%len(opened)], rand.New(rand.NewSource(int64(i)))
			times := make([]time.Duration, 0, each)
			for n := 0; n < each; n++ {
				key := fmt.Sprintf("key:%012d", random.Intn(*keys))
				asked := time.Now()
				var err error
				if *operation == "put" {
					_, err = client.Put(context.Background(), key, value)
				} else {
					_, err = client.Get(context.Background(), key)
				}
				if err != nil {
					log.Fatal(err)
				}
				times = append(times, time.Since(asked))
			}
			taken[i] = times
		}(i)
	}
	all.Wait()
	seconds := time.Since(began).Seconds()
	var times []time.Duration
	for _, one := range taken {
		times = append(times, one...)
	}
	sort.Slice(times, func(a, b int) bool { return times[a] < times[b] })
	at := func(share float64) float64 {
		return times[int(share*float64(len(times)-1))].Seconds() * 1000
	}
	json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"rate": float64(len(times)) / seconds, "p50_ms": at(0.5), "p99_ms": at(0.99),
		"p999_ms": at(0.999),
	})
}
