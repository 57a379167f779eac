import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** The program of a peer: Curator's InterProcessMutex. */
public final class Curator {
    public static void main(String[] arguments) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(arguments[0], new ExponentialBackoffRetry(1000, 3));
        client.start();
        client.blockUntilConnected();
        Peer.Contender[] contenders = new Peer.Contender[Integer.parseInt(arguments[1])];
        for (int at = 0; at < contenders.length; at++) {
            contenders[at] = contender(client);
        }
        Peer.serve(contenders);
    }

    /** One mutex for each: if threads share a mutex, each event wakes all of them, and each sends requests. */
    private static Peer.Contender contender(CuratorFramework client) {
        InterProcessMutex mutex = new InterProcessMutex(client, "/bench-curator");
        return new Peer.Contender() {
            @Override
            public void acquire() throws Exception {
                mutex.acquire();
            }

            @Override
            public void release() throws Exception {
                mutex.release();
            }
        };
    }
}
