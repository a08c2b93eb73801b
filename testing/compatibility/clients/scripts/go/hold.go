package main

import (
	"errors"
	"fmt"
	"math/rand"
	"net"
	"sort"
	"strconv"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

// hold uses gomemcache as most programs do: a get, and if it finds nothing, a computation and a set. hold.py has the arguments and says what is
// printed.
func hold(host, port string, numbers []string) {
	var n [4]int
	for i, text := range numbers {
		number, err := strconv.Atoi(text)
		is(text, err, nil)
		n[i] = number
	}
	keys, ttl, computes, seconds := n[0], n[1], time.Duration(n[2])*time.Millisecond, time.Duration(n[3])*time.Second
	c := memcache.New(net.JoinHostPort(host, port))
	c.Timeout = 20 * time.Second
	is("set", c.Set(&memcache.Item{Key: "always", Value: []byte("there")}), nil)
	computed, gets := 0, 0
	var times []time.Duration
	for end := time.Now().Add(seconds); time.Now().Before(end); {
		key := fmt.Sprintf("user:%d", rand.Intn(keys))
		gets++
		if _, err := c.Get(key); errors.Is(err, memcache.ErrCacheMiss) {
			computed++
			time.Sleep(computes)
			is("set", c.Set(&memcache.Item{Key: key, Value: []byte("computed"), Expiration: int32(ttl)}), nil)
		} else {
			is("get", err, nil)
		}
		begun := time.Now()
		value(c, "always")
		times = append(times, time.Since(begun))
		time.Sleep(time.Duration(rand.Intn(10000)) * time.Microsecond)
	}
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	fmt.Println(computed, gets, times[len(times)*99/100].Microseconds())
}
