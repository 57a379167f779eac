import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** What the programs of all peers do with their locks. programs.py says what they read and print. */
final class Peer {
    private static final long WARM_UP = 2_000_000_000L;

    /** A thread's way to a lock. */
    interface Contender {
        void acquire() throws Exception;

        void release() throws Exception;
    }

    private final Contender[] contenders;

    private Peer(Contender[] contenders) {
        this.contenders = contenders;
    }

    /** Serves the benchmark until the end of the input, which ends the program. */
    static void serve(Contender[] contenders) throws Exception {
        Peer peer = new Peer(contenders);
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
            contenders[0].acquire();
            contenders[0].release();
        }
        double took = (System.nanoTime() - began) / 1e9 / count;
        return took + " " + (processor() - before) / 1e9 / count;
    }

    /** Returns the overlaps, then the grants of each contender, who hold the lock for no time. */
    private String hot(double seconds) throws Exception {
        long until = System.nanoTime() + (long) (seconds * 1e9);
        int[] grants = new int[contenders.length];
        AtomicInteger holders = new AtomicInteger();
        AtomicInteger overlaps = new AtomicInteger();
        Thread[] threads = new Thread[contenders.length];
        for (int at = 0; at < threads.length; at++) {
            int place = at;
            threads[at] = new Thread(() -> grants[place] = contend(contenders[place], until, holders, overlaps));
            threads[at].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return overlaps + " " + IntStream.of(grants).mapToObj(String::valueOf).collect(Collectors.joining(" "));
    }

    private static int contend(Contender contender, long until, AtomicInteger holders, AtomicInteger overlaps) {
        int grants = 0;
        try {
            contender.acquire();
            while (System.nanoTime() < until) {
                if (holders.incrementAndGet() > 1) {
                    overlaps.incrementAndGet();
                }
                grants++;
                holders.decrementAndGet();
                contender.release();
                contender.acquire();
            }
            contender.release();
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
