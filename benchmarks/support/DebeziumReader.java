// Debezium's embedded engine, until it has handed over so many records of one topic:
//
//     java -cp JARS DebeziumReader.java TOPIC COUNT <PROPERTIES  →  records, seconds, CPU-seconds of this process
//
// Records come as the engine has them (Connect's structs, nothing is serialized) and are only counted. The clock starts
// behind the first batch of them: neither the JVM's start nor the connection is measured.

import com.sun.management.OperatingSystemMXBean;
import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.DebeziumEngine.RecordCommitter;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.connect.source.SourceRecord;

class DebeziumReader implements DebeziumEngine.ChangeConsumer<RecordChangeEvent<SourceRecord>> {
    private final OperatingSystemMXBean process = ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class);
    private final CountDownLatch done = new CountDownLatch(1);
    private final String topic;
    private final long wanted;
    private long seen, seenFirst, startedNs, startedCpuNs;

    DebeziumReader(String topic, long wanted) {
        this.topic = topic;
        this.wanted = wanted;
    }

    public static void main(String[] arguments) throws Exception {
        var properties = new Properties();
        properties.load(System.in);
        var reader = new DebeziumReader(arguments[0], Long.parseLong(arguments[1]));
        var engine = DebeziumEngine.create(ChangeEventFormat.of(Connect.class)).using(properties).notifying(reader)
                .using(reader::ended).build();
        new Thread(engine, "engine").start();
        reader.done.await();
        engine.close(); // keeps the offsets
        System.exit(0);
    }

    @Override
    public void handleBatch(
            List<RecordChangeEvent<SourceRecord>> batch, RecordCommitter<RecordChangeEvent<SourceRecord>> committer)
            throws InterruptedException {
        for (var event : batch) {
            if (event.record().topic().equals(topic)) seen++;
            committer.markProcessed(event);
        }
        committer.markBatchFinished();
        if (seenFirst == 0 && seen > 0) {
            seenFirst = seen;
            startedNs = System.nanoTime();
            startedCpuNs = process.getProcessCpuTime();
        }
        if (seen >= wanted && done.getCount() > 0) {
            double seconds = (System.nanoTime() - startedNs) / 1e9;
            double cpuSeconds = (process.getProcessCpuTime() - startedCpuNs) / 1e9;
            System.out.printf(Locale.ROOT, "%d %f %f%n", seen - seenFirst, seconds, cpuSeconds);
            done.countDown();
        }
    }

    private void ended(boolean success, String message, Throwable error) {
        if (done.getCount() > 0) {
            System.err.println(error == null ? message : error);
            System.exit(1);
        }
    }
}
