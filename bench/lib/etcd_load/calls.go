package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A call does the operation of a client with a key, and returns once it is answered.
type call func(client int, key string) error

// caller returns how to put or get, over gRPC or the JSON gateway.
func caller(operation string) call {
	value := strings.Repeat("x", *valueBytes)
	if *gateway {
		return byGateway(operation, value)
	}
	opened := open(*connections, false)
	return func(client int, key string) error {
		used := opened[client%len(opened)]
		var err error
		if operation == "put" {
			_, err = used.Put(context.Background(), key, value)
		} else {
			_, err = used.Get(context.Background(), key)
		}
		return err
	}
}

// byGateway returns a call over HTTP/1.1: each client keeps one connection, to a member in turn.
func byGateway(operation, value string) call {
	method, suffix := "range", `"}`
	if operation == "put" {
		method, suffix = "put", `","value":"`+base64.StdEncoding.EncodeToString([]byte(value))+`"}`
	}
	all := strings.Split(*endpoints, ",")
	opened := make([]http.Client, *clients)
	for i := range opened {
		opened[i].Transport = &http.Transport{MaxConnsPerHost: 1}
	}
	return func(client int, key string) error {
		url := "http://" + all[client%len(all)] + "/v3/kv/" + method
		body := `{"key":"` + base64.StdEncoding.EncodeToString([]byte(key)) + suffix
		reply, err := opened[client].Post(url, "application/json", strings.NewReader(body))
		if err != nil {
			return err
		}
		defer reply.Body.Close()
		said, err := io.ReadAll(reply.Body)
		if err == nil && reply.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d: %.200s", reply.StatusCode, said)
		}
		return err
	}
}

// calls has all clients call, each one call at a time, while more says so of its number of calls.
func calls(do call, more func(done int) bool) map[string]float64 {
	taken := make([][]time.Duration, *clients)
	began := time.Now()
	var all sync.WaitGroup
	for i := range taken {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			random := rand.New(rand.NewSource(int64(i)))
			times := []time.Duration{}
			for more(len(times)) {
				asked := time.Now()
				check(do(i, fmt.Sprintf("key:%012d", random.Intn(*keys))))
				times = append(times, time.Since(asked))
			}
			taken[i] = times
		}(i)
	}
	all.Wait()
	spent := time.Since(began).Seconds()
	var times []time.Duration
	for _, one := range taken {
		times = append(times, one...)
	}
	found := map[string]float64{"rate": float64(len(times)) / spent}
	shares(found, "", times)
	return found
}
