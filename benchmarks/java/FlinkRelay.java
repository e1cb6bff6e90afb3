import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Copies topics with Flink's KafkaSource and KafkaSink, exactly once.
 *
 * <p>Arguments: servers. Each line of input has a source, a target and the source's number of
 * records. The answer is the number of seconds from reading the first record until the transactions
 * of the last checkpoint are committed, which ends the job. The JVM keeps running, so that it is
 * warm for later lines.
 */
public final class FlinkRelay {
    private static final int SLOTS = 2;
    private static final long CHECKPOINT_MS = 1_000;
    private static final AtomicLong FIRST = new AtomicLong();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            System.out.println(seconds(arguments[0], words[0], words[1]));
        }
    }

    private static double seconds(String servers, String source, String target) throws Exception {
        FIRST.set(0);
        Configuration settings = new Configuration();
        StreamExecutionEnvironment flink =
                StreamExecutionEnvironment.createLocalEnvironment(SLOTS, settings);
        flink.enableCheckpointing(CHECKPOINT_MS);
        // Records are passed on unchanged, and nothing keeps them.
        flink.getConfig().enableObjectReuse();
        KafkaSource<Tuple2<byte[], byte[]>> from =
                KafkaSource.<Tuple2<byte[], byte[]>>builder()
                        .setBootstrapServers(servers)
                        .setTopics(source)
                        .setGroupId(target)
                        .setStartingOffsets(OffsetsInitializer.earliest())
                        .setBounded(OffsetsInitializer.latest())
                        .setProperty("isolation.level", "read_committed")
                        .setDeserializer(new Reading())
                        .build();
        KafkaSink<Tuple2<byte[], byte[]>> to =
                KafkaSink.<Tuple2<byte[], byte[]>>builder()
                        .setBootstrapServers(servers)
                        .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                        .setTransactionalIdPrefix(target)
                        .setProperty("transaction.timeout.ms", "60000")
                        .setRecordSerializer(writing(target))
                        .build();
        flink.fromSource(from, WatermarkStrategy.noWatermarks(), "source").sinkTo(to);
        flink.execute();
        return (System.nanoTime() - FIRST.get()) / 1e9;
    }

    private static KafkaRecordSerializationSchema<Tuple2<byte[], byte[]>> writing(String target) {
        return (record, context, timestamp) -> new ProducerRecord<>(target, record.f0, record.f1);
    }

    private static final class Reading
            implements KafkaRecordDeserializationSchema<Tuple2<byte[], byte[]>> {
        @Override
        public void deserialize(
                ConsumerRecord<byte[], byte[]> record, Collector<Tuple2<byte[], byte[]>> out)
                throws IOException {
            if (FIRST.get() == 0) {
                FIRST.compareAndSet(0, System.nanoTime());
            }
            out.collect(Tuple2.of(record.key(), record.value()));
        }

        @Override
        public TypeInformation<Tuple2<byte[], byte[]>> getProducedType() {
            return Types.TUPLE(
                    Types.PRIMITIVE_ARRAY(Types.BYTE), Types.PRIMITIVE_ARRAY(Types.BYTE));
        }
    }
}
