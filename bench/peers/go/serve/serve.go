// Package serve is what the programs of all peers do with their locks. programs.py says what they read and print.
package serve

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Run opens a lock for each contender at the server of the command line, and serves the benchmark.
func Run(open func(address string, contenders int) []sync.Locker) {
	var contenders int
	_, err := fmt.Sscan(os.Args[2], &contenders)
	Check(err)
	locks := open(os.Args[1], contenders)
	pairs(locks[0], 100)
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var word string
		var amount float64
		_, err := fmt.Sscan(lines.Text(), &word, &amount)
		Check(err)
		if word == "pair" {
			fmt.Println(pairs(locks[0], int(amount)))
		} else {
			fmt.Println(hot(locks, amount))
		}
	}
}

// Check ends the program if there is an error.
func Check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The seconds and the processor seconds of one uncontended pair.
func pairs(lock sync.Locker, count int) string {
	began, before := time.Now(), processor()
	for range count {
		lock.Lock()
		lock.Unlock()
	}
	took, used := time.Since(began).Seconds(), processor()-before
	return fmt.Sprint(took/float64(count), " ", used/float64(count))
}

// The overlaps, then the grants of each contender, who hold the lock for no time.
func hot(locks []sync.Locker, seconds float64) string {
	until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	grants := make([]int, len(locks))
	var holders, overlaps atomic.Int64
	var done sync.WaitGroup
	for at, lock := range locks {
		done.Add(1)
		go func() {
			defer done.Done()
			for {
				lock.Lock()
				if !time.Now().Before(until) {
					break
				}
				if holders.Add(1) > 1 {
					overlaps.Add(1)
				}
				grants[at]++
				holders.Add(-1)
				lock.Unlock()
			}
			lock.Unlock()
		}()
	}
	done.Wait()
	return fmt.Sprint(overlaps.Load(), " ", strings.Trim(fmt.Sprint(grants), "[]"))
}

func processor() float64 {
	var usage syscall.Rusage
	Check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}
