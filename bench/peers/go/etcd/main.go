// The program of a peer: concurrency.Mutex of etcd's Go client.
package main

import (
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"tenure/bench/peers/serve"
)

func main() {
	serve.Run(open)
}

// Each contender needs a session of its own: mutexes of one session are one holder.
func open(address string, contenders int) []sync.Locker {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: 20 * time.Second})
	serve.Check(err)
	locks := make([]sync.Locker, contenders)
	for at := range locks {
		session, err := concurrency.NewSession(client)
		serve.Check(err)
		locks[at] = concurrency.NewLocker(session, "/bench-go")
	}
	return locks
}
