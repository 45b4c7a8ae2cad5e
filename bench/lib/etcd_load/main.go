// Loads a server of etcd's API, etcd or quorate, through etcd's own client library.
//
// Built against Debian's golang-etcd-server-dev:
//
//	GO111MODULE=off GOPATH=/usr/share/gocode go build -o etcd-load ./bench/lib/etcd_load
//
// Prints one JSON object; times in it are in milliseconds. What it has depends on -op: calls.go
// (put and get), watches.go (watch) and leases.go (lease).
//
// The library tries again for ever if no server is there. The caller sets a limit.
package main

import (
	"encoding/json"
	"flag"
	"log"
	"os"
	"sort"
	"strings"
	"time"

	"go.etcd.io/etcd/clientv3"
)

var (
	endpoints   = flag.String("endpoints", "", "host:port, separated by commas")
	operation   = flag.String("op", "put", "put, get (linearizable), watch, or lease")
	gateway     = flag.Bool("gateway", false, "put and get by JSON, each client with a connection of its own")
	connections = flag.Int("connections", 8, "how many connections")
	clients     = flag.Int("clients", 64, "how many clients put and get at a time")
	total       = flag.Int("total", 10000, "how many operations of put and get")
	valueBytes  = flag.Int("value-bytes", 256, "length of a value")
	keys        = flag.Int("keys", 100000, "over how many keys")
	seconds     = flag.Float64("seconds", 10, "how long watch and lease measure")
	watchers    = flag.Int("watchers", 1000, "how many watches")
	oneEach     = flag.Bool("one-each", false, "each watches a key of its own; else all one prefix")
	rate        = flag.Float64("rate", 10, "puts a second that watch sends")
	leases      = flag.Int("leases", 10000, "how many leases")
	ttl         = flag.Int("ttl", 10, "seconds of a lease; it is renewed after a third of that")
	pids        = flag.String("pids", "", "processes whose processor time watch and lease report, separated by commas")
)

func main() {
	flag.Parse()
	var found map[string]float64
	switch *operation {
	case "watch":
		found = watch()
	case "lease":
		found = lease()
	default:
		each := (*total + *clients - 1) / *clients
		found = calls(caller(*operation), func(done int) bool { return done < each })
	}
	json.NewEncoder(os.Stdout).Encode(found)
}

// open returns connections. If each has one endpoint only, they take turns.
func open(count int, one bool) []*clientv3.Client {
	all := strings.Split(*endpoints, ",")
	opened := make([]*clientv3.Client, count)
	for i := range opened {
		own := all
		if one {
			own = all[i%len(all):][:1]
		}
		client, err := clientv3.New(clientv3.Config{Endpoints: own, DialTimeout: 5 * time.Second})
		check(err)
		opened[i] = client
	}
	return opened
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// shares adds the percentiles of times to a report.
func shares(found map[string]float64, name string, times []time.Duration) {
	sort.Slice(times, func(a, b int) bool { return times[a] < times[b] })
	for label, share := range map[string]float64{"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999} {
		if len(times) > 0 {
			at := times[int(share*float64(len(times)-1))]
			found[name+label] = at.Seconds() * 1000
		}
	}
}
