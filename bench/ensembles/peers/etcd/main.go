// The program of a peer: concurrency.Mutex of etcd's Go client. programs.py says what it reads and prints.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const name = "/bench-go"

var always = context.Background()

func main() {
	var contenders int
	_, err := fmt.Sscan(os.Args[2], &contenders)
	check(err)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Args[1]}, DialTimeout: 20 * time.Second})
	check(err)
	mutexes := open(client, contenders)
	pairs(mutexes[0], 100)
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var word string
		var amount float64
		_, err := fmt.Sscan(lines.Text(), &word, &amount)
		check(err)
		if word == "pair" {
			fmt.Println(pairs(mutexes[0], int(amount)))
		} else {
			fmt.Println(hot(mutexes, amount))
		}
	}
}

// Each contender needs a session of its own: mutexes of one session are one holder.
func open(client *clientv3.Client, contenders int) []*concurrency.Mutex {
	mutexes := make([]*concurrency.Mutex, contenders)
	for at := range mutexes {
		session, err := concurrency.NewSession(client)
		check(err)
		mutexes[at] = concurrency.NewMutex(session, name)
	}
	return mutexes
}

// The seconds and the processor seconds of one uncontended pair.
func pairs(mutex *concurrency.Mutex, count int) string {
	began, before := time.Now(), processor()
	for range count {
		check(mutex.Lock(always))
		check(mutex.Unlock(always))
	}
	took, used := time.Since(began).Seconds(), processor()-before
	return fmt.Sprint(took/float64(count), " ", used/float64(count))
}

// The overlaps, then the grants of each contender, who hold the mutex for no time.
func hot(mutexes []*concurrency.Mutex, seconds float64) string {
	until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	grants := make([]int, len(mutexes))
	var holders, overlaps atomic.Int64
	var done sync.WaitGroup
	for at, mutex := range mutexes {
		done.Add(1)
		go func() {
			defer done.Done()
			for {
				check(mutex.Lock(always))
				if !time.Now().Before(until) {
					break
				}
				if holders.Add(1) > 1 {
					overlaps.Add(1)
				}
				grants[at]++
				holders.Add(-1)
				check(mutex.Unlock(always))
			}
			check(mutex.Unlock(always))
		}()
	}
	done.Wait()
	return fmt.Sprint(overlaps.Load(), " ", strings.Trim(fmt.Sprint(grants), "[]"))
}

func processor() float64 {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
