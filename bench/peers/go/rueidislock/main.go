// The program of a peer: the Locker of rueidislock.
package main

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"tenure/bench/peers/serve"
)

func main() {
	serve.Run(open)
}

// All contenders share one Locker, with the options that its manual gives for one server of Redis 7.0.5 or newer.
func open(address string, contenders int) []sync.Locker {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{address}},
		KeyMajority:  1,
		// It is faster, but where goroutines of one Locker contend, it sometimes leaves all of them waiting for ever.
		NoLoopTracking: contenders == 1,
		// How long a request may take on a busy machine. After the default of 20 ms it would wait for a notification,
		// which nobody sends if nobody else uses the lock.
		TryNextAfter: 10 * time.Second,
	})
	serve.Check(err)
	locks := make([]sync.Locker, contenders)
	for at := range locks {
		locks[at] = &lock{locker: locker}
	}
	return locks
}

type lock struct {
	locker  rueidislock.Locker
	release context.CancelFunc
}

func (mine *lock) Lock() {
	_, release, err := mine.locker.WithContext(context.Background(), "bench")
	serve.Check(err)
	mine.release = release
}

// The release function returns when the server has replied.
func (mine *lock) Unlock() {
	mine.release()
}
