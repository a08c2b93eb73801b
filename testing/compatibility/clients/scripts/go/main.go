// Uses gomemcache's ordinary API widely against one server and asserts every result.
//
// Usage: gomemcache-client HOST:PORT [AUTHORITY], with TLS if there is a file with the authority's certificate, or
// gomemcache-client /SOCKET, or gomemcache-client hold and hold.py's arguments.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

var checks int

func same(what string, found, due interface{}) {
	checks++
	if !reflect.DeepEqual(found, due) {
		fail(fmt.Sprintf("%s: found %v, not %v", what, found, due))
	}
}

func is(what string, found, due error) {
	checks++
	if !errors.Is(found, due) {
		fail(fmt.Sprintf("%s: error %v, not %v", what, found, due))
	}
}

func fail(why string) {
	fmt.Println("FAILED: " + why)
	os.Exit(1)
}

func value(c *memcache.Client, key string) string {
	item, err := c.Get(key)
	is("get "+key, err, nil)
	return string(item.Value)
}

func main() {
	if len(os.Args) == 8 && os.Args[1] == "hold" {
		hold(os.Args[2], os.Args[3], os.Args[4:])
		return
	}
	c := memcache.New(os.Args[1])
	if len(os.Args) > 2 {
		roots := x509.NewCertPool()
		text, err := os.ReadFile(os.Args[2])
		is("the authority's certificate", err, nil)
		same("it is one", roots.AppendCertsFromPEM(text), true)
		c.DialContext = (&tls.Dialer{Config: &tls.Config{RootCAs: roots}}).DialContext
	}
	c.Timeout = 20 * time.Second
	c.MaxIdleConns = 20
	is("ping", c.Ping(), nil)
	is("flush", c.FlushAll(), nil)

	_, err := c.Get("none")
	is("get of a miss", err, memcache.ErrCacheMiss)
	is("set", c.Set(&memcache.Item{Key: "a", Value: []byte("1"), Flags: 0xdeadbeef, Expiration: 1000}), nil)
	item, err := c.Get("a")
	is("get", err, nil)
	same("value", string(item.Value), "1")
	same("flags", item.Flags, uint32(0xdeadbeef))
	binary := make([]byte, 1024)
	for i := range binary {
		binary[i] = byte(i)
	}
	is("set of binary", c.Set(&memcache.Item{Key: "binary", Value: binary}), nil)
	same("binary", value(c, "binary"), string(binary))
	is("set of nothing", c.Set(&memcache.Item{Key: "empty", Value: []byte{}}), nil)
	same("nothing", value(c, "empty"), "")

	is("add over", c.Add(&memcache.Item{Key: "a", Value: []byte("x")}), memcache.ErrNotStored)
	is("add", c.Add(&memcache.Item{Key: "b", Value: []byte("x")}), nil)
	is("replace", c.Replace(&memcache.Item{Key: "b", Value: []byte("y")}), nil)
	is("replace of a miss", c.Replace(&memcache.Item{Key: "none", Value: []byte("y")}), memcache.ErrNotStored)
	is("append", c.Append(&memcache.Item{Key: "b", Value: []byte("+")}), nil)
	is("prepend", c.Prepend(&memcache.Item{Key: "b", Value: []byte("-")}), nil)
	same("b", value(c, "b"), "-y+")
	is("append to a miss", c.Append(&memcache.Item{Key: "none", Value: []byte("+")}), memcache.ErrNotStored)
	is("delete", c.Delete("b"), nil)
	is("delete of a miss", c.Delete("b"), memcache.ErrCacheMiss)

	// gomemcache remembers the unique of every get
	first, err := c.Get("a")
	is("get for cas", err, nil)
	second, err := c.Get("a")
	is("get for cas", err, nil)
	first.Value = []byte("first")
	is("cas", c.CompareAndSwap(first), nil)
	second.Value = []byte("second")
	is("late cas", c.CompareAndSwap(second), memcache.ErrCASConflict)
	same("a", value(c, "a"), "first")
	is("delete", c.Delete("a"), nil)
	is("cas of a miss", c.CompareAndSwap(second), memcache.ErrCacheMiss)

	is("set of a number", c.Set(&memcache.Item{Key: "n", Value: []byte("10")}), nil)
	n, err := c.Increment("n", 5)
	is("increment", err, nil)
	same("n", n, uint64(15))
	n, err = c.Decrement("n", 100)
	is("decrement", err, nil)
	same("n", n, uint64(0))
	n, err = c.Increment("n", 1<<63)
	is("increment", err, nil)
	same("n", n, uint64(1<<63))
	_, err = c.Increment("none", 1)
	is("increment of a miss", err, memcache.ErrCacheMiss)
	is("set of a word", c.Set(&memcache.Item{Key: "word", Value: []byte("abc")}), nil)
	_, err = c.Increment("word", 1)
	checks++
	if err == nil || !strings.Contains(err.Error(), "non-numeric") {
		fail(fmt.Sprintf("increment of a word: %v", err))
	}

	is("touch", c.Touch("n", 100), nil)
	is("touch of a miss", c.Touch("none", 100), memcache.ErrCacheMiss)
	item, err = c.GetAndTouch("n", 300)
	is("get and touch", err, nil)
	same("n", strings.TrimSpace(string(item.Value)), fmt.Sprint(uint64(1<<63)))
	_, err = c.GetAndTouch("none", 300)
	is("get and touch of a miss", err, memcache.ErrCacheMiss)
	is("set that is expired", c.Set(&memcache.Item{Key: "gone", Value: []byte("x"), Expiration: -1}), nil)
	_, err = c.Get("gone")
	is("get of what is expired", err, memcache.ErrCacheMiss)

	keys := []string{}
	for i := 0; i < 2000; i++ {
		key := fmt.Sprintf("many:%d", i)
		keys = append(keys, key)
		if i%2 == 0 {
			is("set", c.Set(&memcache.Item{Key: key, Value: []byte(key), Flags: uint32(i)}), nil)
		}
	}
	items, err := c.GetMulti(keys)
	is("get of many", err, nil)
	same("how many", len(items), 1000)
	for key, item := range items {
		same(key, string(item.Value), key)
	}

	large := bytes.Repeat([]byte("L"), 1000000)
	is("set of a large value", c.Set(&memcache.Item{Key: "large", Value: large}), nil)
	same("large", value(c, "large"), string(large))
	checks++
	if c.Set(&memcache.Item{Key: "large", Value: bytes.Repeat([]byte("L"), 1048577)}) == nil {
		fail("a value of more than 1 MB was taken")
	}
	_, err = c.Get("large")
	is("get of what was refused", err, memcache.ErrCacheMiss)
	_, err = c.Get(strings.Repeat("k", 251))
	is("a key too long", err, memcache.ErrMalformedKey)
	is("the longest key", c.Set(&memcache.Item{Key: strings.Repeat("k", 250), Value: []byte("x")}), nil)
	is("a key beyond ASCII", c.Set(&memcache.Item{Key: "schlüssel☃", Value: []byte("wert")}), nil)
	same("its value", value(c, "schlüssel☃"), "wert")

	// One key many times, for as long as a server needs to see that it is hot.
	for _, hot := range []string{"one", "another"} {
		is("set of a hot key", c.Set(&memcache.Item{Key: "hot", Value: []byte(hot)}), nil)
		for i := 0; i < 200; i++ {
			same("hot", value(c, "hot"), hot)
			time.Sleep(time.Millisecond)
		}
	}

	is("set of a counter", c.Set(&memcache.Item{Key: "count", Value: []byte("0")}), nil)
	var group sync.WaitGroup
	failures := make(chan error, 1600)
	for i := 0; i < 16; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for j := 0; j < 100; j++ {
				if _, err := c.Increment("count", 1); err != nil {
					failures <- err
				}
			}
		}()
	}
	group.Wait()
	same("failures", len(failures), 0)
	same("count", value(c, "count"), "1600")

	is("delete all", c.DeleteAll(), nil)
	_, err = c.Get("count")
	is("get after that", err, memcache.ErrCacheMiss)
	fmt.Printf("OK: %d checks\n", checks)
}
