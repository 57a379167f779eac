import java.util.Arrays;

import org.redisson.api.RLock;
import org.redisson.config.Config;

/** The program of a peer: Redisson's RLock. */
public final class Redisson {
    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + arguments[0]);
        RLock lock = org.redisson.Redisson.create(config).getLock("bench-redisson");
        Peer.Contender[] contenders = new Peer.Contender[Integer.parseInt(arguments[1])];
        Arrays.fill(contenders, contender(lock));
        Peer.serve(contenders);
    }

    /** All threads share it: an RLock knows its holder by the thread. */
    private static Peer.Contender contender(RLock lock) {
        return new Peer.Contender() {
            @Override
            public void acquire() {
                lock.lock();
            }

            @Override
            public void release() {
                lock.unlock();
            }
        };
    }
}
