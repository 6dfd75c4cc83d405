// A program that uses onnxruntime's Java classes. tests/python/test_onnxruntime_clients.py runs it with onnxruntime's library and with Treadle's.
import ai.onnxruntime.*;
import java.nio.*;
import java.util.*;

public class OnnxRuntimeClient {
  static String text(OnnxValue value) throws Exception {
    if (value instanceof OnnxTensor tensor) {
      Object content = tensor.getValue();
      return tensor.getInfo() + " " + (content instanceof Object[] array ? Arrays.deepToString(array) : String.valueOf(content));
    }
    if (value instanceof OnnxSequence sequence) {
      StringBuilder text = new StringBuilder(sequence.getInfo().toString());
      for (OnnxValue element : sequence.getValue()) text.append(" ; ").append(text(element));
      return text.toString();
    }
    OnnxMap map = (OnnxMap) value;
    return map.getInfo() + " " + new TreeMap<>(map.getValue());
  }

  interface Call {
    void run() throws Exception;
  }

  static void fails(Call call) throws Exception {
    try {
      call.run();
      System.out.println("no error");
    } catch (OrtException error) {
      System.out.println(error.getCode());
    }
  }

  public static void main(String[] arguments) throws Exception {
    String folder = arguments[0];
    OrtEnvironment environment = OrtEnvironment.getEnvironment();
    System.out.println(OrtEnvironment.getAvailableProviders());
    OrtSession.SessionOptions options = new OrtSession.SessionOptions();
    options.setIntraOpNumThreads(1);
    options.setInterOpNumThreads(1);
    options.setOptimizationLevel(OrtSession.SessionOptions.OptLevel.ALL_OPT);
    options.addConfigEntry("session.intra_op.allow_spinning", "0");
    try (OrtSession session = environment.createSession(folder + "/affine.onnx", options)) {
      OnnxModelMetadata metadata = session.getMetadata();
      System.out.println(metadata.getProducerName() + " " + metadata.getGraphName() + " " + metadata.getDomain() + " "
          + metadata.getVersion() + " " + metadata.getCustomMetadata());
      for (NodeInfo info : session.getInputInfo().values()) System.out.println(info);
      for (NodeInfo info : session.getOutputInfo().values()) System.out.println(info);
      float[][] x = {{1, 2, 3}, {4, 5, 6}};
      try (OnnxTensor tensor = OnnxTensor.createTensor(environment, x);
          OrtSession.RunOptions run = new OrtSession.RunOptions();
          OrtSession.Result result = session.run(Map.of("x", tensor), run)) {
        System.out.println(text(result.get("y").get()));
        fails(() -> session.run(Map.of("nope", tensor)));
      }
      FloatBuffer buffer = ByteBuffer.allocateDirect(24).order(ByteOrder.nativeOrder()).asFloatBuffer();
      buffer.put(new float[] {1, 0, 0, 0, 1, 0}).rewind();
      try (OnnxTensor tensor = OnnxTensor.createTensor(environment, buffer, new long[] {2, 3});
          OrtSession.Result result = session.run(Map.of("x", tensor), Set.of("y"))) {
        System.out.println(text(result.get("y").get()));
      }
      try (OnnxTensor wrong = OnnxTensor.createTensor(environment, new long[][] {{1, 2, 3}})) {
        fails(() -> session.run(Map.of("x", wrong)));
      }
    }
    try (OrtSession session = environment.createSession(folder + "/text.onnx", options);
        OnnxTensor tensor = OnnxTensor.createTensor(environment, new String[] {"a", "", "sch\u00f6n"});
        OrtSession.Result result = session.run(Map.of("x", tensor))) {
      System.out.println(text(result.get(0)));
    }
    for (String name : new String[] {"/zip.onnx", "/split.onnx"}) {
      try (OrtSession session = environment.createSession(folder + name, options);
          OnnxTensor tensor = OnnxTensor.createTensor(environment, new float[][] {{0.25f, 0.75f}, {1, 0}});
          OrtSession.Result result = session.run(Map.of("x", tensor))) {
        System.out.println(session.getOutputInfo());
        System.out.println(text(result.get(0)));
      }
    }
    fails(() -> environment.createSession(folder + "/nowhere.onnx", options));
    fails(() -> environment.createSession(new byte[] {1, 2, 3}, options));
  }
}
