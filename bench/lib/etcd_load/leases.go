package main

import (
	"context"
	"sync"
	"time"

	"go.etcd.io/etcd/clientv3"
	pb "go.etcd.io/etcd/etcdserver/etcdserverpb"
)

const granters = 8 // for each connection

// A stream renews the leases of a connection, each by itself after a third of its time.
type stream struct {
	client *clientv3.Client
	due    chan renewal // in the order of their times

	guard sync.Mutex
	sent  map[int64]time.Time // when each lease was granted, or its last renewal sent
	times []time.Duration     // how long renewals took
}

type renewal struct {
	lease int64
	at    time.Time
}

// lease keeps leases alive while clients put, and reports both, and how many leases were lost.
func lease() map[string]float64 {
	opened := open(*connections, true)
	streams, granted := make([]*stream, len(opened)), sync.WaitGroup{}
	for i, client := range opened {
		count := (*leases + i) / len(opened)
		streams[i] = &stream{client: client, due: make(chan renewal, count), sent: map[int64]time.Time{}}
		go streams[i].renew()
		for k := 0; k < granters; k++ {
			granted.Add(1)
			go func(one *stream, count int) {
				defer granted.Done()
				one.grant(count)
			}(streams[i], (count+k)/granters)
		}
	}
	granted.Wait()

	for _, one := range streams {
		one.take() // Those before do not count.
	}
	used, began := processor(), time.Now()
	end := began.Add(time.Duration(*seconds * float64(time.Second)))
	found := calls(caller("put"), func(int) bool { return time.Now().Before(end) })
	spent := time.Since(began).Seconds()
	found["processor_ms"] = (processor() - used) * 1000 / spent // of a second
	times := []time.Duration{}
	for _, one := range streams {
		times = append(times, one.take()...)
	}
	found["renewals"] = float64(len(times)) / spent // of a second
	shares(found, "renewal_", times)
	found["lost"] = float64(lost(streams))
	return found
}

func (one *stream) grant(count int) {
	for ; count > 0; count-- {
		reply, err := one.client.Grant(context.Background(), int64(*ttl))
		check(err)
		one.guard.Lock()
		one.sent[int64(reply.ID)] = time.Now()
		one.guard.Unlock()
		one.schedule(int64(reply.ID))
	}
}

func (one *stream) schedule(lease int64) {
	one.due <- renewal{lease, time.Now().Add(time.Duration(*ttl) * time.Second / 3)}
}

func (one *stream) renew() {
	opened, err := pb.NewLeaseClient(one.client.ActiveConnection()).LeaseKeepAlive(context.Background())
	check(err)
	go func() {
		for {
			reply, err := opened.Recv()
			check(err)
			one.guard.Lock()
			one.times = append(one.times, time.Since(one.sent[reply.ID]))
			one.guard.Unlock()
		}
	}()
	for next := range one.due {
		time.Sleep(time.Until(next.at))
		one.guard.Lock()
		one.sent[next.lease] = time.Now()
		one.guard.Unlock()
		check(opened.Send(&pb.LeaseKeepAliveRequest{ID: next.lease}))
		one.schedule(next.lease)
	}
}

// take returns how long the renewals since the last call took.
func (one *stream) take() []time.Duration {
	one.guard.Lock()
	defer one.guard.Unlock()
	times := one.times
	one.times = nil
	return times
}

// lost returns how many of the leases are no longer there.
func lost(streams []*stream) int {
	reply, err := streams[0].client.Leases(context.Background())
	check(err)
	there := map[int64]bool{}
	for _, one := range reply.Leases {
		there[int64(one.ID)] = true
	}
	missing := *leases
	for _, one := range streams {
		one.guard.Lock()
		for id := range one.sent {
			if there[id] {
				missing--
			}
		}
		one.guard.Unlock()
	}
	return missing
}
