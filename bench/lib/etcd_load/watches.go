package main

import (
	"context"
	"fmt"
	"log"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/clientv3"
)

const lateSeconds = 20 // An event that takes longer is lost.

// watch puts at a steady rate, and reports how long each event took from its put to each watcher.
func watch() map[string]float64 {
	puts := int(*rate * *seconds)
	heard := *watchers * puts // All watchers hear of each put,
	if *oneEach {
		heard = puts // or one does.
	}
	began := time.Now()
	taken := make(chan time.Duration, heard)
	opened := open(*connections, true)
	var ready sync.WaitGroup
	for i := 0; i < *watchers; i++ {
		ready.Add(1)
		go follow(opened[i%len(opened)], i, began, taken, &ready)
	}
	ready.Wait()

	used, steady := processor(), time.NewTicker(time.Duration(float64(time.Second) / *rate))
	for n := 0; n < puts; n++ {
		<-steady.C
		go func(n int) {
			sent := strconv.FormatInt(int64(time.Since(began)), 10)
			_, err := opened[n%len(opened)].Put(context.Background(), watched(n%*watchers), sent)
			check(err)
		}(n)
	}
	times := make([]time.Duration, 0, heard)
	late := time.After(lateSeconds * time.Second)
	for len(times) < heard {
		select {
		case one := <-taken:
			times = append(times, one)
		case <-late:
			log.Fatalf("%d of %d events did not arrive", heard-len(times), heard)
		}
	}
	found := map[string]float64{"event_us": (processor() - used) / float64(heard) * 1e6}
	shares(found, "", times)
	return found
}

// follow passes on how long each event of a watcher took.
func follow(
	client *clientv3.Client, number int, began time.Time, taken chan<- time.Duration, ready *sync.WaitGroup,
) {
	key, options := "watched/", []clientv3.OpOption{clientv3.WithCreatedNotify()}
	if *oneEach {
		key = watched(number)
	} else {
		options = append(options, clientv3.WithPrefix())
	}
	for reply := range client.Watch(context.Background(), key, options...) {
		check(reply.Err())
		if reply.Created {
			ready.Done()
		}
		for _, event := range reply.Events {
			sent, err := strconv.ParseInt(string(event.Kv.Value), 10, 64)
			check(err)
			taken <- time.Since(began) - time.Duration(sent)
		}
	}
}

func watched(number int) string { return fmt.Sprintf("watched/%06d", number) }
