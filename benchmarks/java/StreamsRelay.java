import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;

/**
 * Copies topics with Kafka Streams, exactly once or at least once.
 *
 * <p>Arguments: servers, guarantee, state directory. Each line of input has a source, a target and
 * the source's number of records. The answer is the number of seconds from reading the first record
 * until the whole source is committed. The JVM keeps running, so that it is warm for later lines.
 */
public final class StreamsRelay {
    private static final int THREADS = 2;
    // The default of exactly_once_v2; the default of at_least_once is 30 s.
    private static final int COMMIT_MS = 100;

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            System.out.println(seconds(arguments, words[0], words[1], Long.parseLong(words[2])));
        }
    }

    private static double seconds(String[] arguments, String source, String target, long rows)
            throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, Path.of(arguments[2], target).toString());
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, target);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, THREADS);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, COMMIT_MS);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArray().getClass());
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArray().getClass());
        StreamsBuilder topology = new StreamsBuilder();
        AtomicLong first = new AtomicLong();
        topology.stream(source)
                .peek(
                        (key, value) -> {
                            if (first.get() == 0) {
                                first.compareAndSet(0, System.nanoTime());
                            }
                        })
                .to(target);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]));
                KafkaStreams streams = new KafkaStreams(topology.build(), settings)) {
            streams.start();
            while (committed(admin, target) < rows) {
                Thread.sleep(10);
            }
            double seconds = (System.nanoTime() - first.get()) / 1e9;
            streams.close(Duration.ofSeconds(30));
            return seconds;
        }
    }

    private static long committed(Admin admin, String group) throws Exception {
        return admin
                .listConsumerGroupOffsets(group)
                .partitionsToOffsetAndMetadata()
                .get()
                .values()
                .stream()
                .filter(offset -> offset != null)
                .mapToLong(offset -> offset.offset())
                .sum();
    }
}
