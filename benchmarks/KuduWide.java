// The wide row through Kudu's Java client, by orders on standard input, one a line: each is answered with
// the seconds that it took. What the client is given is made before the clock starts, as on our side.
//   create TABLE [REPLICAS]         8 hash partitions; 3 replicas, if it is not said
//   upsert TABLE ROWS SPACE SEED    SPACE 0: new keys 0..ROWS-1 in random order; else random ones below SPACE
//   same TABLE ROWS SPACE SALT      the rows of store_tables.py; SPACE 0: keys 0..ROWS-1; else random ones below SPACE
//   scan TABLE                      every row, all columns, one thread; also tells how many rows there were
//   get TABLE CALLS SPACE THREADS   one key after the other from each thread
//   many TABLE TABLETS              three columns, 3 replicas; until all tablets run
//   drop TABLE
//   owners TABLE MILLISECONDS       gives it one owner after the other: the longest time between two that were
//                                   taken, and how many were
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.apache.kudu.ColumnSchema;
import org.apache.kudu.Schema;
import org.apache.kudu.Type;
import org.apache.kudu.client.AlterTableOptions;
import org.apache.kudu.client.CreateTableOptions;
import org.apache.kudu.client.KuduClient;
import org.apache.kudu.client.KuduPredicate;
import org.apache.kudu.client.KuduScanner;
import org.apache.kudu.client.KuduSession;
import org.apache.kudu.client.KuduTable;
import org.apache.kudu.client.PartialRow;
import org.apache.kudu.client.PleaseThrottleException;
import org.apache.kudu.client.RowResult;
import org.apache.kudu.client.SessionConfiguration;
import org.apache.kudu.client.Upsert;

public class KuduWide {
  static final int BUFFERED = 20000;
  static KuduClient client;

  public static void main(String[] args) throws Exception {
    client = new KuduClient.KuduClientBuilder(args[0]).build();
    System.out.println("ready");
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] w = line.trim().split(" ");
      String said;
      switch (w[0]) {
        case "create": said = create(w[1], w.length > 2 ? Integer.parseInt(w[2]) : 3); break;
        case "upsert":
          said = upsert(w[1], Integer.parseInt(w[2]), Integer.parseInt(w[3]), Long.parseLong(w[4]));
          break;
        case "same":
          said = same(w[1], Integer.parseInt(w[2]), Integer.parseInt(w[3]), Long.parseLong(w[4]));
          break;
        case "scan": said = scan(w[1]); break;
        case "many": said = many(w[1], Integer.parseInt(w[2])); break;
        case "drop": client.deleteTable(w[1]); said = "0"; break;
        case "owners": said = owners(w[1], Long.parseLong(w[2])); break;
        default:
          said = get(w[1], Integer.parseInt(w[2]), Integer.parseInt(w[3]), Integer.parseInt(w[4]));
      }
      System.out.println(said);
    }
    client.close();
  }

  static String create(String name, int replicas) throws Exception {
    List<ColumnSchema> columns = new ArrayList<>();
    columns.add(new ColumnSchema.ColumnSchemaBuilder("k", Type.INT64).key(true).build());
    for (int n = 0; n < 4; n++)
      columns.add(new ColumnSchema.ColumnSchemaBuilder("i" + n, Type.INT64).build());
    for (int n = 0; n < 2; n++)
      columns.add(new ColumnSchema.ColumnSchemaBuilder("d" + n, Type.DOUBLE).build());
    for (int n = 0; n < 2; n++)
      columns.add(new ColumnSchema.ColumnSchemaBuilder("s" + n, Type.STRING).build());
    client.createTable(name, new Schema(columns), new CreateTableOptions()
        .setNumReplicas(replicas).addHashPartitions(List.of("k"), 8));
    return "0";
  }

  static String many(String name, int tablets) throws Exception {
    List<ColumnSchema> columns = new ArrayList<>();
    columns.add(new ColumnSchema.ColumnSchemaBuilder("k", Type.INT64).key(true).build());
    columns.add(new ColumnSchema.ColumnSchemaBuilder("a", Type.INT64).build());
    columns.add(new ColumnSchema.ColumnSchemaBuilder("b", Type.STRING).build());
    long began = System.nanoTime();
    client.createTable(name, new Schema(columns), new CreateTableOptions()
        .setNumReplicas(3).addHashPartitions(List.of("k"), tablets));
    return "" + (System.nanoTime() - began) / 1e9;
  }

  static String owners(String name, long milliseconds) throws Exception {
    long began = System.nanoTime(), last = began, longest = 0, count = 0;
    while (last - began < milliseconds * 1_000_000) {
      client.alterTable(name, new AlterTableOptions().setWait(false).setOwner("owner" + count++));
      long now = System.nanoTime();
      longest = Math.max(longest, now - last);
      last = now;
    }
    return longest / 1e9 + " " + count;
  }

  static String upsert(String name, int rows, int space, long seed) throws Exception {
    Random random = new Random(seed);
    long[] keys = new long[rows];
    for (int n = 0; n < rows; n++) keys[n] = space > 0 ? random.nextInt(space) : n;
    for (int n = rows - 1; space == 0 && n > 0; n--) {
      int other = random.nextInt(n + 1);
      long held = keys[n];
      keys[n] = keys[other];
      keys[other] = held;
    }
    long[] numbers = random.longs(rows + 4L, 0, 1L << 40).toArray();
    double[] fractions = random.doubles(rows + 2L).toArray();
    String[] texts = new String[1 << 16];
    for (int n = 0; n < texts.length; n++) {
      char[] letters = new char[20];
      for (int c = 0; c < letters.length; c++) letters[c] = (char) ('a' + random.nextInt(26));
      texts[n] = new String(letters);
    }
    KuduTable table = client.openTable(name);
    KuduSession session = client.newSession();
    session.setFlushMode(SessionConfiguration.FlushMode.AUTO_FLUSH_BACKGROUND);
    session.setMutationBufferSpace(BUFFERED);
    long began = System.nanoTime();
    for (int n = 0; n < rows; n++) {
      Upsert one = table.newUpsert();
      PartialRow row = one.getRow();
      row.addLong(0, keys[n]);
      for (int c = 0; c < 4; c++) row.addLong(1 + c, numbers[n + c]);
      for (int c = 0; c < 2; c++) row.addDouble(5 + c, fractions[n + c]);
      row.addString(7, texts[n & 0xffff]);
      row.addString(8, texts[(n * 31) & 0xffff]);
      apply(session, one);
    }
    session.flush();
    double seconds = (System.nanoTime() - began) / 1e9;
    int errors = session.countPendingErrors();
    session.close();
    if (errors > 0) throw new IllegalStateException(errors + " rows failed");
    return "" + seconds;
  }

  static long mix(long x) {
    long z = x + 0x9E3779B97F4A7C15L;
    z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
    z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
    return z ^ (z >>> 31);
  }

  static String hexed(long number) {
    long bits = mix(number);
    StringBuilder letters = new StringBuilder(20);
    for (int c = 0; c < 16; c++) letters.append("0123456789abcdef".charAt((int) (bits >>> 4 * c) & 15));
    return letters.append("wide").toString();
  }

  static String same(String name, int rows, int space, long salt) throws Exception {
    Random random = new Random(salt);
    KuduTable table = client.openTable(name);
    KuduSession session = client.newSession();
    session.setFlushMode(SessionConfiguration.FlushMode.AUTO_FLUSH_BACKGROUND);
    session.setMutationBufferSpace(BUFFERED);
    for (int n = 0; n < rows; n++) {
      long key = space > 0 ? random.nextInt(space) : n;
      Upsert one = table.newUpsert();
      PartialRow row = one.getRow();
      row.addLong(0, key);
      for (int c = 1; c < 5; c++) row.addLong(c, mix(key + c + salt) >>> 8 * c);
      row.addDouble(5, key * 0.5 + salt);
      row.addDouble(6, mix(key) >>> 40);
      row.addString(7, hexed(key + salt));
      row.addString(8, hexed(~key + salt));
      apply(session, one);
    }
    session.flush();
    int errors = session.countPendingErrors();
    session.close();
    if (errors > 0) throw new IllegalStateException(errors + " rows failed");
    return "" + rows;
  }

  static void apply(KuduSession session, Upsert one) throws Exception {
    while (true) {
      try {
        session.apply(one);
        return;
      } catch (PleaseThrottleException full) {
        Thread.sleep(1);
      }
    }
  }

  static String scan(String name) throws Exception {
    KuduTable table = client.openTable(name);
    long began = System.nanoTime(), rows = 0, sum = 0;
    KuduScanner scanner = client.newScannerBuilder(table).build();
    while (scanner.hasMoreRows())
      for (RowResult row : scanner.nextRows()) {
        rows++;
        for (int c = 0; c < 5; c++) sum += row.getLong(c);
        sum += (long) (row.getDouble(5) + row.getDouble(6));
        sum += row.getString(7).length() + row.getString(8).length();
      }
    return (System.nanoTime() - began) / 1e9 + " " + rows + " " + sum;
  }

  static String get(String name, int calls, int space, int threads) throws Exception {
    KuduTable table = client.openTable(name);
    Thread[] running = new Thread[threads];
    int[] missed = new int[threads];
    long began = System.nanoTime();
    for (int t = 0; t < threads; t++) {
      final int mine = t;
      running[t] = new Thread(() -> {
        Random random = new Random(mine);
        for (int n = 0; n < calls; n++) {
          try {
            if (!there(table, random.nextInt(space))) missed[mine]++;
          } catch (Exception failed) {
            missed[mine]++;
          }
        }
      });
      running[t].start();
    }
    for (Thread thread : running) thread.join();
    double seconds = (System.nanoTime() - began) / 1e9;
    for (int count : missed) if (count > 0) throw new IllegalStateException(count + " keys missed");
    return "" + seconds;
  }

  static boolean there(KuduTable table, long key) throws Exception {
    KuduScanner scanner = client.newScannerBuilder(table).limit(1)
        .addPredicate(KuduPredicate.newComparisonPredicate(
            table.getSchema().getColumn("k"), KuduPredicate.ComparisonOp.EQUAL, key))
        .build();
    int found = 0;
    while (scanner.hasMoreRows())
      for (RowResult row : scanner.nextRows()) if (row.getLong(0) == key) found++;
    scanner.close();
    return found == 1;
  }
}
