// Tests the allocator and the classes of a session's memory, and how runs keep within a limit.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <future>
#include <set>
#include <thread>

#include "tests/session/faults.h"
#include "tests/session/measuring_allocator.h"
#include "tests/session/model_bytes.h"
#include "treadle/out_of_memory.h"
#include "treadle/profile.h"

namespace treadle::testing {
namespace {

using Feeds = std::map<std::string, Datum>;

constexpr int kLinks = 12;
constexpr int64_t kElements = 16 * 1024;
constexpr size_t kValueBytes = kElements * sizeof(float);

// Makes v[i + 1] = v[i] + 1 by an expensive node, or -v[i] by a cheap one; then all values are added up from the last to the first.
ModelBuilder there_and_back(bool yields = false) {
  register_fault_operators();
  ModelBuilder b;
  b.def().opset_imports.push_back({"test.fault", 1});
  b.input("x", {-1}).output("y", {-1});
  std::string last = "x";
  for (int i = 0; i < kLinks; ++i) {
    const std::string next = "v" + std::to_string(i);
    b.node(i % 3 == 1 ? "Neg" : "Step", {last}, {next}, "", i % 3 == 1 ? "" : "test.fault");
    if (i % 3 != 1) {
      onnx::AttributeDef id;
      id.name = "id";
      id.type = onnx::AttributeType::i;
      id.i = i;
      b.last_node().attributes.push_back(std::move(id));
    }
    last = next;
  }
  if (yields) b.node("Yield", {last}, {"yielded"}, "stop", "treadle");
  std::string sum = yields ? "yielded" : last;
  for (int i = kLinks - 1; i-- > 0;) {
    const std::string next = i == 0 ? "y" : "s" + std::to_string(i);
    b.node("Add", {sum, "v" + std::to_string(i)}, {next});
    sum = next;
  }
  return b;
}

Tensor numbers() {
  Tensor x(DType::float32, Shape{kElements});
  for (int64_t i = 0; i < kElements; ++i) x.data<float>()[i] = static_cast<float>(i % 1000) * 0.37F - 100;
  return x;
}

SessionOptions as_written() {
  SessionOptions options;
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;
  options.intra_op_num_threads = 1;
  return options;
}

std::vector<float> run_for(const Session& session) { return values_of(session.run({{"x", numbers()}})[0]); }

const std::vector<float>& truth() {
  static const std::vector<float> values = run_for(Session(there_and_back().model(), as_written()));
  return values;
}

std::string refusal(const Session& session) {
  try {
    session.run({{"x", numbers()}});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    return error.what();
  }
  return {};
}

size_t least_named_by(const std::string& message) {
  const std::string before = "at least ";
  return static_cast<size_t>(std::stoull(message.substr(message.find(before) + before.size())));
}

TEST(SessionMemory, StatisticsTellWhatMemoryIsFor) {
  Session session(there_and_back().model(), as_written());
  run_for(session);
  MemoryStatistics statistics = session.memory_statistics();
  EXPECT_GE(statistics[MemoryClass::activations].bytes, kValueBytes * (kLinks - 1));
  EXPECT_EQ(statistics[MemoryClass::io].bytes, 0U) << "the output was handed over";
  EXPECT_EQ(statistics[MemoryClass::io].peak_bytes, kValueBytes);
  auto [node, tensors] = session.memory_peak();
  EXPECT_FALSE(node.empty());
  ASSERT_GE(tensors.size(), static_cast<size_t>(kLinks - 1));
  EXPECT_EQ(tensors[0].size_bytes, kValueBytes);
  EXPECT_EQ(tensors[0].name[0], 'v');
}

// Concatenates each text with itself twice.
ModelBuilder doubled_text() {
  ModelBuilder b;
  b.input("x", {-1}, DType::string).output("y", {-1}, DType::string);
  return b.node("StringConcat", {"x", "x"}, {"t"}).node("StringConcat", {"t", "x"}, {"y"});
}

TEST(SessionMemory, StringsCountWithTheirTexts) {
  constexpr size_t kLength = 1 << 20;
  const Feeds feeds{{"x", Tensor::strings({1}, std::vector<std::string>{std::string(kLength, 'x')})}};
  Session session(doubled_text().model(), as_written());
  session.run(feeds);
  EXPECT_GE(session.memory_statistics().total.peak_bytes, 5 * kLength) << "t, and y of three";
  EXPECT_LT(session.memory_statistics().total.bytes, kLength) << "nothing is left of them";

  SessionOptions options = as_written();
  options.memory_limit_bytes = 4 * kLength;
  Session limited(doubled_text().model(), options);
  EXPECT_THROW(limited.run(feeds), OutOfMemory);
  options.memory_limit_bytes = 6 * kLength + 4096;
  Session enough(doubled_text().model(), options);
  EXPECT_EQ(enough.run(feeds)[0].tensor().data<std::string>()->size(), 3 * kLength);
}

TEST(SessionMemory, AllocatorsAreChosenByName) {
  for (const char* name : {"plain", "arena", "guard", "nan+arena", "recording+guard"}) {
    SessionOptions options = as_written();
    set_option(options, "allocator", name);
    Session session(there_and_back().model(), options);
    EXPECT_EQ(run_for(session), truth()) << name;
    EXPECT_EQ(run_for(session), truth()) << name << ", again in the same memory";
  }
  SessionOptions options;
  EXPECT_THROW(set_option(options, "allocator", "magic"), Error);
}

TEST(SessionMemory, AnOutputComesFromTheCallersAllocator) {
  for (bool dynamic : {false, true}) {
    ModelBuilder b;
    b.input("x", {-1}).output("y", {-1});
    if (dynamic) b.def().graph.outputs[0] = ModelBuilder::info("y", {1, -1}, DType::int64);
    b.node(dynamic ? "NonZero" : "Neg", {"x"}, {"y"});
    Session session(b.model());
    RunOptions options;
    auto measuring = std::make_shared<MeasuringAllocator>();
    options.output_allocators["y"] = measuring;
    {
      std::vector<Datum> results = session.run({{"x", floats({1, 2, 3})}}, {}, &options);
      EXPECT_EQ(measuring->live(), 64U);
      EXPECT_EQ(results[0].tensor().num_elements(), 3);
    }
    EXPECT_EQ(measuring->live(), 0U);
  }
}

TEST(SessionMemory, RunsKeepToALimitWithTheSameBits) {
  auto measuring = std::make_shared<MeasuringAllocator>();
  SessionOptions options = as_written();
  options.allocator = measuring;
  options.memory_limit_bytes = size_t{1} << 40;
  Session session(there_and_back().model(), options);
  EXPECT_EQ(run_for(session), truth());
  const size_t unlimited = measuring->peak();
  EXPECT_GE(unlimited, kLinks * kValueBytes);
  for (size_t values : {11, 9, 7, 5, 4}) {
    const size_t limit = values * kValueBytes + 4096;
    session.set_memory_limit(limit);
    // This run first frees the memory of idle frames. The run after it is measured.
    EXPECT_EQ(run_for(session), truth()) << limit;
    measuring->reset();
    EXPECT_EQ(run_for(session), truth()) << limit;
    EXPECT_LE(measuring->peak(), limit);
  }
}

TEST(SessionMemory, AShareHoldsForAllExtents) {
  auto held_after = [](const Session& session, int64_t elements, std::vector<float>& y) {
    Tensor x(DType::float32, Shape{elements});
    for (int64_t i = 0; i < elements; ++i) x.data<float>()[i] = static_cast<float>(i % 1000) * 0.37F - 100;
    y = values_of(session.run({{"x", x}})[0]);
    return session.memory_statistics()[MemoryClass::activations].bytes;
  };
  for (double fraction : {0.6, 0.4, 0.001}) {
    SessionOptions options = as_written();
    options.memory_fraction = fraction;
    const Session limited(there_and_back().model(), options);
    for (int64_t elements : {kElements, kElements / 4, 2 * kElements}) {
      std::vector<float> expected, y;
      const size_t whole = held_after(Session(there_and_back().model(), as_written()), elements, expected);
      // A limit below the minimum of any plan is not an error: the sum, a value and their result must be in memory together.
      const double reachable = std::max(fraction, 3.0 * static_cast<double>(elements) * sizeof(float) / static_cast<double>(whole));
      EXPECT_LE(static_cast<double>(held_after(limited, elements, y)), reachable * static_cast<double>(whole) + 1024) << fraction;
      EXPECT_EQ(y, expected) << fraction << " " << elements;
    }
  }
}

TEST(SessionMemory, ValuesThatCostLittleAreComputedTwice) {
  const auto arena_of = [](double fraction) {
    SessionOptions options = as_written();
    options.recompute_fraction = fraction;
    options.spill_folder = "/nowhere";  // no file is written, so the folder does not have to exist
    Session session(there_and_back().model(), options);
    for (int run = 0; run < 2; ++run) EXPECT_EQ(run_for(session), truth()) << fraction;
    return session.memory_statistics()[MemoryClass::activations].bytes;
  };
  const size_t whole = arena_of(0), some = arena_of(0.2), most = arena_of(1);
  EXPECT_LT(some, whole);
  EXPECT_LT(most, some);
  EXPECT_GE(most, 3 * kValueBytes);  // the sum, a value and the sum of both
}

// A profile must record both computations of a value, or part of a run's time would be missing.
TEST(SessionMemory, ValuesComputedTwiceAreRecordedTwice) {
  SessionOptions options = as_written();
  options.recompute_fraction = 0.2;
  options.node_counters = true;
  Session session(there_and_back().model(), options);
  session.run({{"x", numbers()}});
  session.reset_node_counters();
  Profiler profiler = session.profiler({});
  EXPECT_EQ(run_for(session), truth());
  int64_t twice = 0;
  std::map<std::string, int64_t> calls;
  const Profile profile = profiler.profile();
  for (const ProfiledNode& node : profile.nodes) {
    EXPECT_TRUE(node.calls == 1 || node.calls == 2) << node.name << " " << node.calls;
    twice += node.calls == 2;
    calls[node.name] = node.calls;
  }
  EXPECT_GE(twice, 2);
  for (const NodeCounter& counter : session.node_counters()) EXPECT_EQ(counter.calls, calls[counter.name]) << counter.name;
}

TEST(SessionMemory, BlocksOfKernelsFromOutsideAreRecordedOnEverySchedule) {
  register_fault_operators();
  ModelBuilder b;
  b.def().opset_imports.push_back({"test.fault", 1});
  b.input("x", {256});
  for (const std::string name : {"left", "right"}) {
    b.node("DynamicStep", {"x"}, {name + "_made"}, name, "test.fault");
    onnx::AttributeDef id;
    id.name = "id";
    id.type = onnx::AttributeType::i;
    b.last_node().attributes.push_back(std::move(id));
    b.node("Neg", {name + "_made"}, {name + "_y"}).output(name + "_y", {-1});
  }
  for (const ExecutionMode mode : {ExecutionMode::sequential, ExecutionMode::parallel}) {
    SessionOptions options = as_written();
    options.execution_mode = mode;
    options.intra_op_num_threads = 2;
    Session session(b.model(), options);
    Profiler profiler = session.profiler({.memory = true});
    session.run({{"x", Tensor(DType::float32, Shape{256})}});
    const Profile profile = profiler.profile();
    std::set<std::string> holders;
    for (const ProfiledBlock& block : profile.measured_memory->blocks) holders.insert(block.holder);
    for (const std::string name : {"left", "right"})
      EXPECT_TRUE(holders.contains("DynamicStep " + name))
          << ::testing::PrintToString(holders) << ", in parallel: " << (mode == ExecutionMode::parallel);
  }
}

TEST(SessionMemory, ARefusalByALimitIsRecorded) {
  SessionOptions options = as_written();
  options.memory_limit_bytes = 2 * kValueBytes;
  Session session(there_and_back().model(), options);
  Profiler profiler = session.profiler({.memory = true});
  const std::string message = refusal(session);
  const Profile profile = profiler.profile();
  ASSERT_TRUE(profile.measured_memory);
  ASSERT_EQ(profile.measured_memory->refused.size(), 1U);
  EXPECT_EQ(profile.measured_memory->refused[0].size_bytes, least_named_by(message));
}

TEST(SessionMemory, ARefusalOfTextsIsRecorded) {
  SessionOptions options = as_written();
  options.memory_limit_bytes = 1 << 20;
  Session session(doubled_text().model(), options);
  Profiler profiler = session.profiler({.memory = true});
  EXPECT_THROW(session.run({{"x", Tensor::strings({1}, std::vector<std::string>{std::string(1 << 20, 'x')})}}), OutOfMemory);
  const Profile profile = profiler.profile();
  ASSERT_TRUE(profile.measured_memory);
  ASSERT_EQ(profile.measured_memory->refused.size(), 1U);
  EXPECT_GE(profile.measured_memory->refused[0].size_bytes, size_t{2} << 20);
}

// The second run has no plan yet that recomputes values. Without recomputation it only fits into the arena if it is planned for its own
// extents, and not for the larger ones.
TEST(SessionMemory, FewerElementsFitIntoWhatMoreComputedTwiceHad) {
  auto held_after = [](const Session& session, int64_t elements) {
    Tensor x(DType::float32, Shape{elements});
    std::fill_n(x.data<float>(), elements, 0.5F);
    session.run({{"x", x}});
    return session.memory_statistics()[MemoryClass::activations].bytes;
  };
  SessionOptions options = as_written();
  const size_t whole = held_after(Session(there_and_back().model(), options), kElements);
  options.recompute_fraction = 0.2;
  const Session session(there_and_back().model(), options);
  const size_t some = held_after(session, kElements);
  ASSERT_LT(some, whole);
  const auto fewer = static_cast<int64_t>(0.9 * static_cast<double>(some) / static_cast<double>(whole) * kElements);
  EXPECT_EQ(held_after(session, fewer), some);
}

TEST(SessionMemory, ComputingTwiceGoesWithNoParallelExecution) {
  SessionOptions options = as_written();
  options.execution_mode = ExecutionMode::parallel;
  options.intra_op_num_threads = 2;
  EXPECT_EQ(run_for(Session(there_and_back().model(), options)), truth());
  options.recompute_fraction = 0.1;
  EXPECT_THROW(Session(there_and_back().model(), options), Error);
}

TEST(SessionMemory, ALimitWinsOverWhatCostsLittle) {
  SessionOptions options = as_written();
  options.recompute_fraction = 0.2;
  options.memory_limit_bytes = 4 * kValueBytes + 4096;
  Session session(there_and_back().model(), options);
  EXPECT_EQ(run_for(session), truth());
  EXPECT_LE(session.memory_statistics()[MemoryClass::activations].peak_bytes, options.memory_limit_bytes);
}

TEST(SessionMemory, AShareIsFromZeroToOneAndOfTheHost) {
  for (double SessionOptions::*share : {&SessionOptions::memory_fraction, &SessionOptions::recompute_fraction}) {
    for (double fraction : {-0.1, -2.0, 1.5, std::nan("")}) {
      SessionOptions options = as_written();
      options.*share = fraction;
      EXPECT_THROW(Session(there_and_back().model(), options), Error) << fraction;
    }
    SessionOptions options = as_written();
    options.*share = 0.5;
    options.device = "sim";
    EXPECT_THROW(Session(there_and_back().model(), options), Error);
  }
}

TEST(SessionMemory, ALimitThatIsTooLowNamesTheLeast) {
  SessionOptions options = as_written();
  options.memory_limit_bytes = 2 * kValueBytes;
  Session session(there_and_back().model(), options);
  const std::string message = refusal(session);
  const size_t least = least_named_by(message);
  // The run needs two operands and a result, one of which is computed in place, and the output.
  EXPECT_LE(static_cast<double>(least), 1.05 * 3 * kValueBytes + 4096) << message;
  session.set_memory_limit(least);
  EXPECT_EQ(run_for(session), truth());
  session.set_memory_limit(least - 64);
  EXPECT_EQ(least_named_by(refusal(session)), least);
}

Model parsed(const GraphParts& parts) { return Model::from_bytes(onnx::test::bytes_of(model(graph(parts)))); }

std::string large(const std::string& name, const std::vector<DimText>& dims = {"n"}) { return value_info(name, kFloat, dims); }

// Makes a model with values of "n" elements, some of which bodies compute.
Model with_body(const std::string& kind) {
  const std::vector<std::string> work = {node("Neg", {"v"}, {"a"}), node("Mul", {"a", "x"}, {"b"}), node("Add", {"a", "b"}, {"out"})};
  if (kind == "If") {
    auto branch = [&](const std::vector<std::string>& nodes) { return graph({.nodes = nodes, .outputs = {large("out")}}); };
    std::vector<std::string> more = {node("Exp", {"x"}, {"v"})};
    more.insert(more.end(), work.begin(), work.end());
    return parsed({.nodes = {node("If", {"c"}, {"y"},
                                  {graph_attribute("then_branch", branch(more)),
                                   graph_attribute("else_branch", branch({node("Neg", {"x"}, {"out"})}))})},
                   .inputs = {value_info("c", kBool, {}), large("x")},
                   .outputs = {large("y")}});
  }
  std::vector<std::string> nodes = work;
  GraphParts body{.inputs = {large("v")}, .outputs = {large("out")}};
  if (kind == "Loop") {
    nodes.push_back(node("Identity", {"go"}, {"go_on"}));
    nodes.push_back(node("Neg", {"b"}, {"slice"}));
    body.inputs = {value_info("i", kInt64, {}), value_info("go", kBool, {}), large("v")};
    body.outputs = {value_info("go_on", kBool, {}), large("out"), large("slice")};
    body.nodes = nodes;
    return parsed({.nodes = {node("Neg", {"x"}, {"first"}),
                             node("Loop", {"trips", "", "first"}, {"y", "ys"}, {graph_attribute("body", graph(body))})},
                   .initializers = {int64_tensor("trips", {3}, /*scalar=*/true)},
                   .inputs = {large("x")},
                   .outputs = {large("y"), large("ys", {3, "n"})}});
  }
  nodes.push_back(node("Mul", {"b", "row"}, {"slice"}));
  body.inputs.push_back(large("row"));
  body.outputs.push_back(large("slice"));
  body.nodes = nodes;
  return parsed(
      {.nodes = {node("Scan", {"x", "rows"}, {"y", "ys"}, {graph_attribute("body", graph(body)), int_attribute("num_scan_inputs", 1)})},
       .inputs = {large("x"), large("rows", {4, "n"})},
       .outputs = {large("y"), large("ys", {4, "n"})}});
}

TEST(SessionMemory, TheLeastCountsBodies) {
  Tensor rows(DType::float32, {4, kElements});
  for (int64_t i = 0; i < rows.num_elements(); ++i) rows.data<float>()[i] = static_cast<float>(i % 7);
  const Feeds all{{"x", numbers()}, {"rows", rows}, {"c", Tensor::scalar(true)}};
  for (const std::string kind : {"If", "Loop", "Scan"}) {
    const Model built = with_body(kind);
    Feeds feeds{{"x", numbers()}};
    if (kind == "If") feeds.insert(*all.find("c"));
    if (kind == "Scan") feeds.insert(*all.find("rows"));
    const std::vector<Datum> expected = Session(built, as_written()).run(feeds);
    auto measuring = std::make_shared<MeasuringAllocator>();
    SessionOptions options = as_written();
    options.allocator = measuring;
    options.memory_limit_bytes = 4096;
    Session session(built, options);
    auto refused = [&] {
      try {
        session.run(feeds);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
        return std::string(error.what());
      }
      ADD_FAILURE() << kind << ": no error";
      return std::string("at least 0");
    };
    size_t least = least_named_by(refused());
    if (kind == "If") {  // an If takes one of two branches; the message also names what the larger one needs
      EXPECT_GE(least, kValueBytes);
      const std::string text = refused(), before = "can come out, ";
      const size_t most = static_cast<size_t>(std::stoull(text.substr(text.find(before) + before.size())));
      EXPECT_GT(most, least + kValueBytes) << text;
      least = most;
    }
    EXPECT_EQ(refused().find("not counted"), std::string::npos) << refused();
    for (int again = 0; again < 2; ++again) {
      session.set_memory_limit(least);
      measuring->reset();
      const std::vector<Datum> results = session.run(feeds);
      for (size_t k = 0; k < results.size(); ++k) EXPECT_EQ(values_of(results[k]), values_of(expected[k])) << kind;
      EXPECT_LE(measuring->peak(), least) << kind;
      EXPECT_GT(measuring->peak(), least - least / 4) << kind << ": the least is not far above what was used";
    }
    if (kind == "If") continue;
    session.set_memory_limit(least - 64);
    EXPECT_EQ(least_named_by(refused()), least) << kind;
  }
}

TEST(SessionMemory, TheErrorSaysWhatSizesOfTheRunMayAdd) {
  const Model built = parsed({.nodes = {node("Neg", {"x"}, {"v"}), node("NonZero", {"v"}, {"found"}), node("Neg", {"found"}, {"y"})},
                              .inputs = {large("x")},
                              .outputs = {value_info("y", kInt64, {1, "k"})}});
  SessionOptions options = as_written();
  options.memory_limit_bytes = kValueBytes / 2;
  Session session(built, options);
  const std::string message = refusal(session);
  const size_t least = least_named_by(message);
  EXPECT_LE(least, kValueBytes + 8192) << message;
  const std::string before = "can come out, ";
  const auto most = static_cast<size_t>(std::stoull(message.substr(message.find(before) + before.size())));
  EXPECT_GE(most, least + 2 * kElements * sizeof(int64_t)) << "as many as there are elements, found and then negated: " << message;
  session.set_memory_limit(most + 4096);
  const Tensor x = numbers();
  const auto others = std::count_if(x.data<float>(), x.data<float>() + kElements, [](float v) { return v != 0; });
  EXPECT_EQ(session.run({{"x", x}})[0].tensor().num_elements(), others);
  // If few elements are nonzero, much less memory suffices.
  session.set_memory_limit(least + 8192);
  Tensor few(DType::float32, Shape{kElements});
  std::fill_n(few.data<float>(), kElements, 0.0F);
  few.data<float>()[7] = 1;
  EXPECT_EQ(*session.run({{"x", few}})[0].tensor().data<int64_t>(), -7);
}

TEST(SessionMemory, TheLeastCountsOutputsThatNoNodeMakes) {
  Model built = parsed({.nodes = {node("Neg", {"x"}, {"y"}), node("Shape", {"x"}, {"shape"})},
                        .initializers = {int64_tensor("given", std::vector<int64_t>(1000, 3))},
                        .inputs = {large("x")},
                        .outputs = {large("y"), value_info("shape", kInt64, {1}), value_info("given", kInt64, {1000})}});
  SessionOptions options = as_written();
  options.memory_limit_bytes = 10'000;
  Session session(built, options);
  const size_t least = least_named_by(refusal(session));
  EXPECT_GE(least, kValueBytes + 2 * 8000);
  session.set_memory_limit(least);
  const std::vector<Datum> outputs = session.run({{"x", numbers()}});
  EXPECT_EQ(*outputs[1].tensor().data<int64_t>(), kElements);
  EXPECT_EQ(outputs[2].tensor().data<int64_t>()[999], 3);
}

// Bounds that exceed all memory are meaningless, so they are no reason to refuse a run.
TEST(SessionMemory, BoundsWithoutMeaningDoNotCount) {
  const Model built = parsed(
      {.nodes = {node("NonZero", {"x"}, {"a"}), node("Cast", {"a"}, {"b"}, {int_attribute("to", kFloat)}), node("Transpose", {"b"}, {"c"}),
                 node("Unsqueeze", {"c", "two"}, {"d"}), node("Unsqueeze", {"c", "zero"}, {"e"}), node("Add", {"d", "e"}, {"f"}),
                 node("Unsqueeze", {"f", "three"}, {"g"}), node("Unsqueeze", {"c", "zeros"}, {"h"}), node("Add", {"g", "h"}, {"y"})},
       .initializers = {int64_tensor("two", {1}), int64_tensor("zero", {0}), int64_tensor("three", {2}), int64_tensor("zeros", {0, 1})},
       .inputs = {large("x")},
       .outputs = {value_info("y", kFloat, {"a", "b", "c", "d"})}});
  SessionOptions options = as_written();
  options.memory_limit_bytes = 1'000'000;
  Session session(built, options);
  Tensor few(DType::float32, Shape{kElements});
  std::fill_n(few.data<float>(), kElements, 0.0F);
  few.data<float>()[7] = 1;
  EXPECT_EQ(session.run({{"x", few}})[0].tensor().num_elements(), 1);
}

TEST(SessionMemory, TheErrorNamesANodeOfWhichAnythingMayComeOut) {
  const Model built = parsed({.nodes = {node("Neg", {"x"}, {"v"}), node("Expand", {"v", "shape"}, {"y"})},
                              .inputs = {large("x"), value_info("shape", kInt64, {2})},
                              .outputs = {large("y", {"a", "b"})}});
  SessionOptions options = as_written();
  options.memory_limit_bytes = kValueBytes / 2;
  Session session(built, options);
  try {
    session.run({{"x", numbers()}, {"shape", Tensor::vector<int64_t>(std::vector<int64_t>{1, kElements})}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("not counted is what comes out of Expand"), std::string::npos) << error.what();
  }
}

TEST(SessionMemory, RunsAtOnceWaitForRoom) {
  auto measuring = std::make_shared<MeasuringAllocator>();
  SessionOptions options = as_written();
  options.allocator = measuring;
  options.memory_limit_bytes = 6 * kValueBytes;
  Session session(there_and_back().model(), options);
  std::vector<std::thread> clients;
  std::atomic<int> right{0};
  for (int t = 0; t < 4; ++t)
    clients.emplace_back([&] {
      for (int i = 0; i < 10; ++i) right += run_for(session) == truth();
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, 40);
  EXPECT_LE(session.memory_statistics().total.peak_bytes, options.memory_limit_bytes);
  EXPECT_LE(measuring->peak(), options.memory_limit_bytes + clients.size() * kValueBytes) << "each client may hold an output";
}

TEST(SessionMemory, APartialRunWaitsForWholeRuns) {
  SessionOptions options = as_written();
  options.memory_limit_bytes = 14 * kValueBytes;
  const Session session(there_and_back().model(), options);
  Gate gate;
  set_fault(kLinks - 1, [&] { gate.wait(); });
  auto whole = std::async(std::launch::async, [&] { return run_for(session); });
  while (!gate.reached()) std::this_thread::yield();
  auto partial = std::async(std::launch::async, [&] {
    PartialRun run = session.partial_run({{"x", numbers()}});
    run.advance();
    return values_of(run.outputs()[0]);
  });
  EXPECT_EQ(partial.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout) << "there is no room for both";
  gate.open();
  EXPECT_EQ(partial.get(), truth());
  EXPECT_EQ(whole.get(), truth());
  // A partial run that has stopped does not free memory by itself, so other runs fail at once and do not wait for it.
  PartialRun stopped = session.partial_run({{"x", numbers()}});
  stopped.advance_steps(1);
  EXPECT_THROW(session.partial_run({{"x", numbers()}}), OutOfMemory);
}

TEST(SessionMemory, ARunFollowsALimitThatChangesUnderWay) {
  for (size_t values : {5, 8, 40}) {
    for (int at = 0; at < kLinks; at += 2) {
      SessionOptions options = as_written();
      options.memory_limit_bytes = 12 * kValueBytes;
      auto measuring = std::make_shared<MeasuringAllocator>();
      options.allocator = measuring;
      Session session(there_and_back().model(), options);
      set_fault(at, [&, limit = values * kValueBytes] { session.set_memory_limit(limit); });
      EXPECT_EQ(run_for(session), truth()) << "from 12 to " << values << " values at node " << at;
      set_fault(-1, {});
      if (at < 5) continue;
      EXPECT_LE(measuring->live(), std::max<size_t>(values, 12) * kValueBytes);
    }
  }
}

TEST(SessionMemory, AnArenaOfPagesFollowsALimitThatChangesUnderWay) {
  for (size_t values : {5, 8, 11, 13, 40}) {
    for (int at = 0; at < kLinks; at += 2) {
      SessionOptions options = as_written();
      options.memory_limit_bytes = 10 * kValueBytes;
      Session session(there_and_back().model(), options);
      set_fault(at, [&, limit = values * kValueBytes] { session.set_memory_limit(limit); });
      EXPECT_EQ(run_for(session), truth()) << "from 10 to " << values << " values at node " << at;
      set_fault(-1, {});
      EXPECT_LE(session.memory_statistics().total.bytes, std::max<size_t>(values, 10) * kValueBytes);
      EXPECT_EQ(run_for(session), truth()) << "the next run, with " << values << " values";
    }
  }
}

TEST(SessionMemory, ALimitThatLeavesRoomForWhatIsThereWritesNoFile) {
  for (size_t values : {7, 9, 12}) {
    SessionOptions options = as_written();
    options.memory_limit_bytes = size_t{1} << 40;
    options.spill_folder = "/nonexistent";
    Session session(there_and_back().model(), options);
    // At this node, the limit becomes `values` values. If more are alive, some must be written to a file, which is impossible here.
    set_fault(3, [&, limit = values * kValueBytes] { session.set_memory_limit(limit); });
    try {
      EXPECT_EQ(run_for(session), truth());
      EXPECT_GE(values, size_t{12});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io_error) << error.what();
      EXPECT_LT(values, size_t{12}) << error.what();
    }
    set_fault(-1, {});
  }
}

// Makes six branches of three nodes each, which begin at one value and end in one sum.
ModelBuilder six_branches() {
  register_fault_operators();
  ModelBuilder b;
  b.def().opset_imports.push_back({"test.fault", 1});
  b.input("x", {-1}).output("y", {-1});
  std::string sum;
  for (int i = 0; i < 6; ++i) {
    const std::string n = std::to_string(i);
    std::string last = "x";
    for (int k = 0; k < 3; ++k) {
      const std::string next = "b" + n + "_" + std::to_string(k);
      b.node("Step", {last}, {next}, "", "test.fault");
      onnx::AttributeDef id;
      id.name = "id";
      id.type = onnx::AttributeType::i;
      id.i = 3 * i + k;
      b.last_node().attributes.push_back(std::move(id));
      last = next;
    }
    const std::string next = i == 5 ? "y" : "s" + n;
    if (i == 0)
      b.node("Mul", {last, "b0_0"}, {next});
    else
      b.node("Add", {sum, last}, {next});
    sum = next;
  }
  return b;
}

TEST(SessionMemory, AParallelRunFollowsALimitThatChangesUnderWay) {
  const std::vector<float> expected = run_for(Session(six_branches().model(), as_written()));
  SessionOptions options = as_written();
  options.execution_mode = ExecutionMode::parallel;
  options.intra_op_num_threads = 4;
  options.memory_limit_bytes = 40 * kValueBytes;
  int went_below = 0;
  for (size_t values : {4, 6, 100}) {
    for (int at = 0; at < 18; ++at) {
      auto measuring = std::make_shared<MeasuringAllocator>();
      options.allocator = measuring;
      Session session(six_branches().model(), options);
      const size_t limit = values * kValueBytes;
      set_fault(at, [&] { session.set_memory_limit(limit); });
      EXPECT_EQ(run_for(session), expected) << values << " values from node " << at;
      set_fault(-1, {});
      if (values < 10) went_below += measuring->live() <= limit;
      EXPECT_EQ(run_for(session), expected) << "the next run has the limit from its beginning";
      if (values < 10) {
        measuring->reset();
        run_for(session);
        EXPECT_LE(measuring->peak(), limit + kValueBytes);
      }
    }
  }
  EXPECT_GT(went_below, 20) << "arenas that the limit does not hold were given up";
}

TEST(SessionMemory, PartialRunsKeepToTheLimitAcrossAYield) {
  Session unlimited(there_and_back(/*yields=*/true).model(), as_written());
  SessionOptions options = as_written();
  options.memory_limit_bytes = 6 * kValueBytes;
  Session session(there_and_back(/*yields=*/true).model(), options);
  auto outputs = [](const Session& s) {
    PartialRun run = s.partial_run({{"x", numbers()}});
    EXPECT_FALSE(run.advance());
    EXPECT_FALSE(run.advance()) << "a Yield is left by resume() only";
    EXPECT_TRUE(run.resume(std::vector<Datum>{run.yielded()[0].second}));
    return values_of(run.outputs()[0]);
  };
  EXPECT_EQ(outputs(session), outputs(unlimited));
}

TEST(SessionMemory, AGuardFindsAKernelThatWritesTooFar) {
  SessionOptions options = as_written();
  options.allocator = make_allocator("guard");
  Session session(there_and_back().model(), options);
  // The arena is the largest block. The test writes beyond its end, as a faulty kernel would.
  run_for(session);
  std::byte* end = nullptr;
  size_t largest = 0;
  options.allocator->visit_regions([&](const MemoryRegion& region) {
    if (!region.used || region.size_bytes < largest) return;
    largest = region.size_bytes;
    end = static_cast<std::byte*>(const_cast<void*>(region.data)) + region.size_bytes;
  });
  set_fault(0, [&] { *end = std::byte{1}; });
  try {
    run_for(session);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
    EXPECT_NE(std::string(error.what()).find("memory behind a block was written"), std::string::npos) << error.what();
  }
  EXPECT_EQ(run_for(session), truth());
}

TEST(SessionMemory, AParentAccountIsChargedWithWhatItsSessionsHold) {
  auto job = std::make_shared<MemoryAccount>("the job", 1'000'000);
  SessionOptions options = as_written();
  options.memory_account = job;
  {
    Session session(there_and_back().model(), options);
    EXPECT_EQ(run_for(session), truth());
    EXPECT_GE(job->bytes(), kValueBytes * (kLinks - 2));
    Session second(there_and_back().model(), options);
    EXPECT_NE(refusal(second).find("of the job"), std::string::npos);
  }
  EXPECT_EQ(job->bytes(), 0U);
}

// A product must not be computed in place over its residual if that is also its A, or shares A's bytes, because rows of A are read later.
TEST(SessionMemory, NoResultLiesOverAnOperandThatIsReadInAnotherOrder) {
  constexpr int64_t kRows = 5, kColumns = 200;  // enough columns for several panels, whatever the instruction set
  Tensor weight(DType::float32, {kColumns, kColumns}), x(DType::float32, {kRows, kColumns});
  for (int64_t i = 0; i < kColumns * kColumns; ++i) weight.data<float>()[i] = static_cast<float>(i * 31 % 101 - 50) / 800;
  for (int64_t i = 0; i < kRows * kColumns; ++i) x.data<float>()[i] = static_cast<float>(i * 17 % 23 - 11) / 11;
  auto times_weight = [&](const std::vector<double>& a) {
    std::vector<double> product(a.size());
    for (int64_t m = 0; m < kRows; ++m)
      for (int64_t n = 0; n < kColumns; ++n)
        for (int64_t k = 0; k < kColumns; ++k)
          product[m * kColumns + n] += a[m * kColumns + k] * double{weight.data<float>()[k * kColumns + n]};
    return product;
  };
  const std::vector<float> feed = values_of(x);
  const std::vector<double> a = times_weight({feed.begin(), feed.end()});
  std::vector<double> sum = times_weight(a);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += a[i];
  const std::vector<double> expected = times_weight(sum);
  Tensor rows(DType::int64, {2});
  rows.data<int64_t>()[0] = kRows, rows.data<int64_t>()[1] = kColumns;
  for (bool viewed : {false, true}) {
    ModelBuilder b;
    b.input("x", {kRows, kColumns}).output("y", {kRows, kColumns}).constant("w", weight).constant("rows", rows);
    b.node("MatMul", {"x", "w"}, {"a"}).node("Reshape", {"a", "rows"}, {"same"});
    b.node("MatMul", {"a", "w"}, {"b"}).node("Add", {"b", viewed ? "same" : "a"}, {"c"}).node("MatMul", {"c", "w"}, {"y"});
    for (bool optimized : {true, false}) {
      SessionOptions options;
      if (!optimized) options.graph_optimization_level = GraphOptimizationLevel::disable_all;
      const std::vector<float> y = values_of(Session(b.model(), options).run({{"x", x}})[0]);
      for (size_t i = 0; i < y.size(); ++i)
        ASSERT_NEAR(y[i], expected[i], 1e-4) << "element " << i << (viewed ? " viewed" : "") << (optimized ? " optimised" : "");
    }
  }
}

}  // namespace
}  // namespace treadle::testing
