// Touches a direct buffer page by page in a named method: code interpreted, then compiled by a virtual machine.
//
// Run: java [-XX:+DumpPerfMapAtExit] Touch.java [--mib N] [--hold-ms N] [--time]
// With -XX:+DumpPerfMapAtExit (from Java 17) the virtual machine writes /tmp/perf-PID.map.
//
// Known answer. ByteBuffer.allocateDirect zeroes its N MiB, so the first touches, N MiB / 4096 pages and one more when
// it does not start at a page's first byte, happen inside the virtual machine's fill, called from `allocate` (marked
// `here allocate`). The writes at `here` in touchBuffer then fault nothing. The virtual machine itself touches many
// other pages, on many threads.
import java.nio.ByteBuffer;

public class Touch {
    static final int PAGE_BYTES = 4096;

    static int option(String[] arguments, String name, int fallback) {
        for (int i = 0; i + 1 < arguments.length; i++) {
            if (arguments[i].equals(name)) {
                return Integer.parseInt(arguments[i + 1]);
            }
        }
        return fallback;
    }

    static ByteBuffer allocate(int bytes) {
        return ByteBuffer.allocateDirect(bytes); // touch: here allocate
    }

    static void touchBuffer(ByteBuffer buffer) {
        for (int at = 0; at < buffer.capacity(); at += PAGE_BYTES) {
            buffer.put(at, (byte) 1); // touch: here
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        long beginNs = System.nanoTime();
        int bytes = option(arguments, "--mib", 64) * 1024 * 1024;
        ByteBuffer buffer = allocate(bytes);
        touchBuffer(buffer);
        long sum = 0;
        for (int at = 0; at < bytes; at += PAGE_BYTES) {
            sum += buffer.get(at);
        }
        if (sum != bytes / PAGE_BYTES) {
            throw new AssertionError("the sum is " + sum);
        }
        System.out.println("Touch pages=" + bytes / PAGE_BYTES);
        for (String argument : arguments) {
            if (argument.equals("--time")) {
                System.err.printf("seconds=%.6f%n", (System.nanoTime() - beginNs) / 1e9);
            }
        }
        Thread.sleep(option(arguments, "--hold-ms", 0));
    }
}
