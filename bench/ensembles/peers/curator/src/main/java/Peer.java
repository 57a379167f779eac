import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** The program of a peer: Curator's InterProcessMutex. programs.py says what it reads and prints. */
public final class Peer {
    private static final long WARM_UP = 2_000_000_000L;

    /** One for each contender: if threads share a mutex, each event wakes all of them, and each sends requests. */
    private final InterProcessMutex[] mutexes;

    private Peer(CuratorFramework client, int contenders) {
        mutexes = new InterProcessMutex[contenders];
        for (int at = 0; at < contenders; at++) {
            mutexes[at] = new InterProcessMutex(client, "/bench-curator");
        }
    }

    public static void main(String[] arguments) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(arguments[0], new ExponentialBackoffRetry(1000, 3));
        client.start();
        client.blockUntilConnected();
        Peer peer = new Peer(client, Integer.parseInt(arguments[1]));
        for (long until = System.nanoTime() + WARM_UP; System.nanoTime() < until; ) {
            peer.pairs(10);  // Java compiles what it runs often
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            double amount = Double.parseDouble(words[1]);
            System.out.println(words[0].equals("pair") ? peer.pairs((int) amount) : peer.hot(amount));
        }
        System.exit(0);
    }

    /** Returns the seconds and the processor seconds of one uncontended pair. */
    private String pairs(int count) throws Exception {
        long began = System.nanoTime();
        long before = processor();
        for (int done = 0; done < count; done++) {
            mutexes[0].acquire();
            mutexes[0].release();
        }
        double took = (System.nanoTime() - began) / 1e9 / count;
        return took + " " + (processor() - before) / 1e9 / count;
    }

    /** Returns the overlaps, then the grants of each contender, who hold the mutex for no time. */
    private String hot(double seconds) throws Exception {
        long until = System.nanoTime() + (long) (seconds * 1e9);
        int[] grants = new int[mutexes.length];
        AtomicInteger holders = new AtomicInteger();
        AtomicInteger overlaps = new AtomicInteger();
        Thread[] threads = new Thread[mutexes.length];
        for (int at = 0; at < threads.length; at++) {
            int place = at;
            threads[at] = new Thread(() -> grants[place] = contend(mutexes[place], until, holders, overlaps));
            threads[at].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return overlaps + " " + IntStream.of(grants).mapToObj(String::valueOf).collect(Collectors.joining(" "));
    }

    private static int contend(
            InterProcessMutex mutex, long until, AtomicInteger holders, AtomicInteger overlaps) {
        int grants = 0;
        try {
            mutex.acquire();
            while (System.nanoTime() < until) {
                if (holders.incrementAndGet() > 1) {
                    overlaps.incrementAndGet();
                }
                grants++;
                holders.decrementAndGet();
                mutex.release();
                mutex.acquire();
            }
            mutex.release();
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
        return grants;
    }

    private static long processor() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
