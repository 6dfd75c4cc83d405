#include "exec/run/frame.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "exec/plan/binding.h"
#include "exec/program/verify_switch.h"
#include "exec/verify/verify_plan.h"
#include "tests/exec/allocation_counter.h"
#include "tests/exec/graphs.h"
#include "tests/exec/host_program.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using exec::BindingCache;
using Program = testing::HostProgram;
using testing::GraphBuilder;

Tensor floats(const Shape& shape, float start = 1, float step = 1) {
  Tensor tensor(DType::float32, shape);
  for (int64_t i = 0; i < tensor.num_elements(); ++i) tensor.data<float>()[i] = start + step * static_cast<float>(i);
  return tensor;
}

std::vector<Datum> run_all(const Program& program, std::vector<Datum> feeds, std::vector<Datum> bound = {}) {
  std::vector<Datum> outputs(program.output_slots().size());
  program.run(feeds, outputs, {}, bound);
  return outputs;
}

// Makes y = relu(x + b) * 2 of five nodes. The batch is a symbol.
std::shared_ptr<Graph> small_chain(int num_adds = 4) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {b.symbol("n"), 8});
  ValueId one = b.constant("one", Tensor::scalar(1.0F));
  ValueId y = x;
  for (int i = 0; i < num_adds; ++i) y = b.node("Add", {y, one});
  b.output(b.node("Mul", {y, y}), "y");
  return b.finish();
}

TEST(Frame, ComputesForEveryBatchThatItIsFed) {
  Program program(small_chain());
  for (int64_t n : {1, 3, 2, 40, 17, 3}) {
    Tensor x = floats({n, 8});
    Tensor y = run_all(program, {x})[0].tensor();
    ASSERT_EQ(y.shape(), (Shape{n, 8}));
    for (int64_t i = 0; i < y.num_elements(); ++i) {
      float sum = x.data<float>()[i] + 4;
      ASSERT_EQ(y.data<float>()[i], sum * sum);
    }
  }
}

TEST(Frame, SteadyRunWithBoundInputsAndOutputsAllocatesNothing) {
  Program program(small_chain());
  std::vector<Datum> feeds{floats({4, 8})}, bound{Tensor(DType::float32, {4, 8})}, outputs(1);
  program.run(feeds, outputs, {}, bound);
  program.run(feeds, outputs, {}, bound);
  int64_t before = testing::num_allocations();
  for (int i = 0; i < 10; ++i) program.run(feeds, outputs, {}, bound);
  EXPECT_EQ(testing::num_allocations(), before);
  EXPECT_EQ(outputs[0].tensor().raw(), bound[0].tensor().raw());
}

TEST(Frame, NewExtentInAKnownBucketBindsWithoutAllocation) {
  const bool verified = exec::verifies_plans();
  exec::set_verifies_plans(false);  // the verification of plans would allocate memory
  Program program(small_chain());
  exec::set_verifies_plans(verified);
  Tensor memory(DType::float32, {128, 8}), result(DType::float32, {128, 8});
  auto step = [&](int64_t n) {
    std::vector<Datum>& feeds = *new std::vector<Datum>{Tensor(DType::float32, {n, 8}, memory.storage())};
    std::vector<Datum>& bound = *new std::vector<Datum>{Tensor(DType::float32, {n, 8}, result.storage())};
    std::vector<Datum>& outputs = *new std::vector<Datum>(1);
    int64_t before = testing::num_allocations();
    program.run(feeds, outputs, {}, bound);
    int64_t count = testing::num_allocations() - before;
    delete &feeds, delete &bound, delete &outputs;
    return count;
  };
  for (int64_t n = 65; n <= 128; ++n) step(n);  // these are more extents than the cache holds; their plans are all made here
  for (int64_t n = 65; n <= 128; ++n) EXPECT_EQ(step(n), 0) << n;
}

// Some nodes read neither extent, some one, some both. The known elements of one node change although its shapes do not.
TEST(Frame, ABindingMadeForOtherExtentsComputesAsANewOne) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {b.symbol("n"), 4}), y = b.input("y", DType::float32, {b.symbol("m"), 4});
  ValueId fixed = b.input("fixed", DType::float32, {3, 4});
  ValueId both = b.node("Concat", {b.node("Exp", {x}), b.node("Exp", {y})}, {{"axis", int64_t{0}}});
  ValueId n = b.node("Shape", {x}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
  b.output(b.node("Slice", {both, n, b.node("Add", {n, b.ints("one", {1})}), b.ints("axis", {0})}), "first_of_y");
  b.output(b.node("ReduceSum", {b.node("Neg", {x}), b.ints("axes", {0})}), "sum_of_x");
  b.output(b.node("ReduceMax", {both, b.ints("axes1", {0})}), "largest");
  b.output(b.node("MatMul", {fixed, b.constant("w", floats({4, 4}))}), "product");
  auto graph = b.finish();
  Program program(graph);
  // More pairs than the cache holds. From each pair to the next, one extent grows or both change.
  std::vector<std::pair<int64_t, int64_t>> extents;
  for (int64_t i = 1; i <= 24; ++i) extents.push_back({i, 5});
  for (int64_t i = 1; i <= 24; ++i) extents.push_back({24, i});
  for (int64_t i = 1; i <= 24; ++i) extents.push_back({i * 7 % 23 + 1, i * 5 % 19 + 1});
  for (auto [rows, others] : extents) {
    const std::vector<Datum> feeds{floats({rows, 4}, -1, 0.01F), floats({others, 4}, 1, -0.02F), floats({3, 4})};
    const std::vector<Datum> found = run_all(program, feeds), wanted = run_all(Program(graph), feeds);
    for (size_t i = 0; i < wanted.size(); ++i)
      EXPECT_TRUE(equal(found[i].tensor(), wanted[i].tensor())) << rows << ' ' << others << ' ' << i;
  }
}

BindingCache::Statistics statistics_after(const Program& program, std::initializer_list<int64_t> extents) {
  for (int64_t n : extents) run_all(program, {floats({n, 4})});
  return program.plans().bindings().statistics();
}

TEST(Frame, ExtentsThatGrowTakeNoBindingFromThoseThatComeBack) {
  GraphBuilder b;
  b.output(b.node("Exp", {b.input("x", DType::float32, {b.symbol("n"), 4})}), "y");
  auto graph = b.finish();
  Program program(graph);
  for (int64_t n = 1; n <= static_cast<int64_t>(BindingCache::kCapacity); ++n) statistics_after(program, {n});
  for (int64_t n = 100; n < 200; ++n) statistics_after(program, {n});
  const int64_t misses = program.plans().bindings().statistics().misses;
  EXPECT_EQ(misses, static_cast<int64_t>(BindingCache::kCapacity) + 100);
  for (int64_t n = 1; n < static_cast<int64_t>(BindingCache::kCapacity); ++n) statistics_after(program, {n});
  EXPECT_EQ(program.plans().bindings().statistics().misses, misses) << "only the last of the first extents made room";
}

TEST(Frame, ExtentsThatComeBackGetBindingsOfTheirOwn) {
  GraphBuilder b;
  b.output(b.node("Exp", {b.input("x", DType::float32, {b.symbol("n"), 4})}), "y");
  auto graph = b.finish();
  Program program(graph);
  for (int64_t n = 100; n < 200; ++n) statistics_after(program, {n});
  const int64_t before = statistics_after(program, {1, 2, 3, 4, 5}).misses;
  EXPECT_LE(statistics_after(program, {1, 2, 3, 4, 5}).misses, before + 5);
  const int64_t twice = program.plans().bindings().statistics().misses;
  EXPECT_EQ(statistics_after(program, {1, 2, 3, 4, 5, 3, 1}).misses, twice);
  // An extent that was bound a second time keeps its binding: new extents do not overwrite it.
  EXPECT_EQ(statistics_after(program, {6, 1, 7, 2, 8, 3, 9, 4}).misses, twice + 4);
}

TEST(Frame, ViewsAndInPlaceUpdatesShareBytes) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {4, 6});
  ValueId y = b.node("Add", {x, x});
  y = b.node("Reshape", {y, b.ints("shape", {6, 4})});
  y = b.node("Add", {y, y});
  y = b.node("Reshape", {y, b.ints("flat", {24})});
  b.output(b.node("Add", {y, y}), "y");
  Program program(b.finish());
  EXPECT_EQ(program.instructions().size(), 3U);  // the reshapes are views
  size_t values_in_arena = 0;
  for (const auto& buffer : program.buffers()) values_in_arena += buffer.slot != exec::kNoSlot;
  EXPECT_EQ(values_in_arena, 1U);  // both sums use the same bytes, and the last value is the output
  Tensor x_value = floats({4, 6});
  Tensor y_value = run_all(program, {x_value})[0].tensor();
  for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(y_value.data<float>()[i], 8 * x_value.data<float>()[i]);
}

TEST(Frame, OutputsMayBeInputsConstantsViewsAndEachOther) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {2, 3});
  ValueId c = b.constant("c", floats({2}));
  ValueId view = b.node("Reshape", {x, b.ints("shape", {3, 2})});
  ValueId sum = b.node("Add", {x, x});
  ValueId sum_view = b.node("Reshape", {sum, b.ints("shape2", {6})});
  for (ValueId value : {x, c, view, sum, sum_view, sum}) b.output(value, "o" + std::to_string(b.graph().outputs.size()));
  Program program(b.finish());
  Tensor x_value = floats({2, 3});
  std::vector<Datum> outputs = run_all(program, {x_value});
  EXPECT_EQ(outputs[0].tensor().raw(), x_value.raw());
  EXPECT_EQ(outputs[1].tensor().data<float>()[1], 2);
  EXPECT_EQ(outputs[2].tensor().shape(), (Shape{3, 2}));
  EXPECT_EQ(outputs[2].tensor().data<float>()[5], 6);
  EXPECT_EQ(outputs[3].tensor().data<float>()[5], 12);
  EXPECT_EQ(outputs[4].tensor().shape(), (Shape{6}));
  EXPECT_EQ(outputs[4].tensor().data<float>()[5], 12);
  EXPECT_EQ(outputs[5].tensor().data<float>()[0], 2);
}

TEST(Frame, ADynamicNodeReadsAValueThatAnOutputWasWrittenOver) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {4});
  ValueId sum = b.node("Add", {x, x});
  ValueId product = b.node("Mul", {sum, sum});  // the product is computed in place of the sum
  b.output(b.node("Reshape", {product, b.ints("shape", {2, 2})}), "y");
  ValueId kept = b.node("NonZero", {product});
  b.output(b.node("Gather", {product, b.node("Squeeze", {kept, b.ints("axes", {0})})}), "z");
  Program program(b.finish());
  Tensor x_value(DType::float32, {4});
  float values[] = {1, 0, 2, 3};
  std::copy_n(values, 4, x_value.data<float>());
  std::vector<Datum> outputs = run_all(program, {x_value});
  ASSERT_EQ(outputs[1].tensor().shape(), (Shape{3}));
  EXPECT_EQ(outputs[0].tensor().data<float>()[3], 36);
  EXPECT_EQ(outputs[1].tensor().data<float>()[2], 36);
  EXPECT_EQ(outputs[1].tensor().data<float>()[1], 16);
}

TEST(Frame, ShapesThatTheFeedsDetermineNeedNoInstruction) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {b.symbol("n"), b.symbol("m")});
  ValueId shape = b.node("Shape", {x});
  ValueId n = b.node("Gather", {shape, b.constant("zero", Tensor::scalar<int64_t>(0))}, {{"axis", int64_t{0}}});
  ValueId n1 = b.node("Unsqueeze", {n, b.ints("axes", {0})});
  ValueId target = b.node("Concat", {n1, b.ints("minus", {-1})}, {{"axis", int64_t{0}}});
  b.output(b.node("Reshape", {b.node("Add", {x, x}), target}), "y");
  b.output(target, "target");
  Program program(b.finish());
  EXPECT_EQ(program.instructions().size(), 1U);
  std::vector<Datum> outputs = run_all(program, {floats({2, 5})});
  EXPECT_EQ(outputs[0].tensor().shape(), (Shape{2, 5}));
  EXPECT_EQ(outputs[1].tensor().data<int64_t>()[0], 2);
}

TEST(Frame, DataDependentShapesAreBoundInTheRun) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {b.symbol("n")});
  ValueId where = b.node("NonZero", {x});
  ValueId index = b.node("Squeeze", {where, b.ints("axes", {0})});
  ValueId kept = b.node("Gather", {x, index}, {{"axis", int64_t{0}}});
  b.output(b.node("Add", {kept, kept}), "y");
  Program program(b.finish());
  Tensor x_value(DType::float32, {5});
  float values[] = {0, 3, 0, 4, 5};
  std::copy_n(values, 5, x_value.data<float>());
  Tensor y = run_all(program, {x_value})[0].tensor();
  ASSERT_EQ(y.shape(), (Shape{3}));
  EXPECT_EQ(y.data<float>()[0], 6);
  EXPECT_EQ(y.data<float>()[2], 10);
}

TEST(Frame, FeedsThatBreakTheirTypesAreNamed) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {b.symbol("n"), 8});
  ValueId z = b.input("z", DType::float32, {b.symbol("n"), 8});
  b.output(b.node("Add", {x, z}), "y");
  Program program(b.finish());
  auto message = [&](std::vector<Datum> feeds) {
    try {
      run_all(program, std::move(feeds));
      return std::string("no error");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(message({floats({2, 8}), floats({3, 8})}),
            "input \"z\": axis 0 is 3, but the symbol n is 2 in another input; got f32[3,8], expected f32[n,8]");
  // The message begins with ONNX Runtime's text, which existing programs search for.
  EXPECT_EQ(message({floats({2, 7}), floats({2, 8})}),
            "Got invalid dimensions for input: x for the following indices\n index: 1 Got: 7 Expected: 8\n Please fix either the "
            "inputs/outputs or the model: input \"x\": axis 1 is 7, not 8; got f32[2,7], expected f32[n,8]");
  EXPECT_EQ(
      message({floats({2}), floats({2, 8})}),
      "Invalid rank for input: x Got: 1 Expected: 2 Please fix either the inputs/outputs or the model: input \"x\": another rank; got "
      "f32[2], expected f32[n,8]");
  EXPECT_EQ(message({Tensor(DType::int64, {2, 8}), floats({2, 8})}),
            "Unexpected input data type. Actual: (tensor(int64)) , expected: (tensor(float)): input \"x\": another dtype; got i64[2,8], "
            "expected f32[n,8]");
  EXPECT_EQ(message({floats({2, 8}), floats({2, 8})}), "no error");
}

TEST(Frame, StridedFeedsAreRead) {
  Program program(small_chain(1));
  Tensor memory = floats({8, 2});
  int64_t strides[] = {1, 2};  // the strides of the transposed tensor
  Tensor transposed(DType::float32, {2, 8}, strides, memory.storage(), 0);
  Tensor y = run_all(program, {transposed})[0].tensor();
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 8; ++j) EXPECT_EQ(y.data<float>()[i * 8 + j], std::pow(memory.data<float>()[j * 2 + i] + 1, 2.0F));
}

TEST(Frame, AViewOfAnotherDtypeHasItsOwn) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {2});
  b.output(b.node("BitCast", {b.node("Neg", {x})}, {{"to", int64_t{6}}}));
  const Program program(b.finish());
  const std::vector<Datum> bound{Tensor(DType::int32, {2})};
  for (bool into_memory : {false, true}) {
    const Tensor bits = run_all(program, {floats({2})}, into_memory ? bound : std::vector<Datum>{})[0].tensor();
    ASSERT_EQ(bits.dtype(), DType::int32);
    EXPECT_EQ(static_cast<uint32_t>(bits.data<int32_t>()[0]), 0xBF800000U);  // the bits of -1
    EXPECT_EQ(static_cast<uint32_t>(bits.data<int32_t>()[1]), 0xC0000000U);  // the bits of -2
  }
}

TEST(Frame, ASequenceKeepsElementsThatAreWrittenOverLater) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {2});
  ValueId zero = b.constant("zero", Tensor::scalar<int64_t>(0));
  // Neg is computed in place over the square. Its bytes then belong to an output of the graph: as a view, or as part of a Concat.
  auto over = [&](bool concat) {
    ValueId square = b.node("Mul", {x, x});
    ValueId sequence = b.node("SequenceConstruct", {square});
    ValueId negative = b.node("Neg", {square});
    b.output(concat ? b.node("Concat", {negative, x}, {{"axis", int64_t{0}}}) : b.node("Reshape", {negative, b.ints("row", {1, 2})}));
    b.output(b.node("SequenceAt", {sequence, zero}));
  };
  over(true);
  over(false);
  auto graph = b.finish();
  for (bool parallel : {false, true}) {
    const Program program(graph, {.parallel = parallel, .always_parallel = parallel, .pieces_in_place = true});
    const std::vector<Datum> outputs = run_all(program, {floats({2}, 3)});
    for (size_t kept : {1U, 3U})
      EXPECT_EQ(std::vector<float>(outputs[kept].tensor().span<float>().begin(), outputs[kept].tensor().span<float>().end()),
                (std::vector<float>{9, 16}));
  }
}

TEST(Frame, CancelledAndLateRunsStopAndTheProgramStaysUsable) {
  Program program(small_chain());
  std::vector<Datum> feeds{floats({1, 8})}, outputs(1);
  std::atomic<bool> cancel{true};
  exec::RunControl control;
  control.stop.cancel = &cancel;
  try {
    program.run(feeds, outputs, control);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::cancelled);
  }
  // An observer that cancels the run during its last instruction.
  struct Canceller final : exec::Observer {
    std::atomic<bool>& cancel;
    int left;
    Canceller(std::atomic<bool>& c, int n) : cancel(c), left(n) {}
    void ready(const exec::RunState&, const exec::Instruction&) override {}
    void before(const exec::RunState&, const exec::Instruction&) override { cancel = --left == 0; }
    void after(const exec::RunState&, const exec::Instruction&, const Device*) override {}
  } canceller(cancel, static_cast<int>(program.instructions().size()));
  control.observer = &canceller;
  cancel = false;
  try {
    program.run(feeds, outputs, control);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::cancelled);
  }
  control.observer = nullptr;
  control.stop.cancel = nullptr;
  control.stop.deadline = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  try {
    program.run(feeds, outputs, control);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timed_out);
  }
  program.run(feeds, outputs, {});
  EXPECT_EQ(outputs[0].tensor().data<float>()[0], 25);
}

}  // namespace
}  // namespace treadle
