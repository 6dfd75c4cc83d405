// Compares Concats whose inputs lie in the output, and Splits whose outputs lie in the input, with programs in which every value has bytes
// of its own.
#include "exec/program/pieces.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>

#include "core/threads/thread_pool.h"
#include "exec/run/frame.h"
#include "tests/exec/graphs.h"
#include "tests/exec/host_program.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using Program = testing::HostProgram;
using exec::ProgramOptions;
using testing::GraphBuilder;

const ProgramOptions kPieces{.pieces_in_place = true}, kApart{.reuse_memory = false}, kCopies{};

Tensor numbers(const Shape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Tensor x(DType::float32, shape);
  for (float& value : x.span<float>()) value = uniform(random);
  return x;
}

std::vector<Datum> run(const Program& program, const std::vector<Datum>& feeds, const exec::RunControl& control = {}) {
  std::vector<Datum> outputs(program.output_slots().size());
  program.run(feeds, outputs, control);
  return outputs;
}

void expect_same_bits(const std::vector<Datum>& a, const std::vector<Datum>& b, const std::string& what = {}) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].tensor().shape(), b[i].tensor().shape()) << what;
    EXPECT_EQ(std::memcmp(a[i].tensor().raw(), b[i].tensor().raw(), a[i].tensor().size_bytes()), 0) << "output " << i << ' ' << what;
  }
}

size_t arena_of(const Program& program) { return program.plans().bindings().latest_plan()->arena_bytes; }

// Returns the number of values that are stored within other values.
size_t num_pieces(const Program& program) { return program.pieces().size(); }

TEST(Pieces, AConcatsInputsAreWrittenIntoItsOutput) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {4, 256});
  ValueId joined = b.node("Concat", {b.node("Tanh", {x}), b.node("Exp", {x}), b.node("Abs", {x})}, {{"axis", int64_t{0}}});
  b.output(b.node("ReduceSum", {b.node("MatMul", {joined, b.constant("w", numbers({256, 4}, 1))})}, {{"keepdims", int64_t{0}}}));
  auto graph = b.finish();
  Program pieces(graph, kPieces), copies(graph, kCopies), apart(graph, kApart);
  const std::vector<Datum> feeds{numbers({4, 256}, 2)};
  expect_same_bits(run(pieces, feeds), run(apart, feeds));
  run(copies, feeds);
  EXPECT_EQ(num_pieces(pieces), 3U);
  EXPECT_EQ(num_pieces(copies), 0U);
  // Without sharing, the arena additionally holds the three inputs of the Concat.
  EXPECT_GE(arena_of(copies), arena_of(pieces) + 3 * 4 * 256 * sizeof(float) - 1024) << "but for scratch";
}

TEST(Pieces, OfElementsBelowAByteLieApart) {
  GraphBuilder b;
  const ValueId x = b.input("x", DType::int4, {2, 3});
  const auto rows = b.nodes("Split", {x}, 2, {{"num_outputs", int64_t{2}}});
  b.output(b.node("Concat", {rows[1], rows[0]}, {{"axis", int64_t{0}}}));
  const Program program(b.finish(), {.pieces_in_place = true, .verify_plans = true});
  Tensor feed(DType::int4, {2, 3}), swapped(DType::int4, {2, 3});
  const uint8_t codes[] = {0x21, 0x43, 0x65}, expected[] = {0x54, 0x16, 0x32};
  std::memcpy(feed.raw(), codes, sizeof codes), std::memcpy(swapped.raw(), expected, sizeof expected);
  expect_same_bits(run(program, {feed}), {swapped});
}

// Concatenates the columns of two matrices in plain C++. This is the expected result.
Tensor joined_columns(const Tensor& a, const Tensor& b) {
  const int64_t rows = a.shape()[0], left = a.shape()[1], right = b.shape()[1];
  Tensor out(DType::float32, {rows, left + right});
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(a.data<float>() + r * left, left, out.data<float>() + r * (left + right));
    std::copy_n(b.data<float>() + r * right, right, out.data<float>() + r * (left + right) + left);
  }
  return out;
}

TEST(Pieces, AConcatAlongAnotherAxisDoesNotWriteRowsWithAStep) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {1, 4}), y = b.input("y", DType::float32, {1, 4}), z = b.input("z", DType::float32, {2, 4});
  ValueId below = b.node("Concat", {b.node("Relu", {x}), b.node("Relu", {y})}, {{"axis", int64_t{0}}});
  b.output(b.node("Concat", {below, b.node("Relu", {z})}, {{"axis", int64_t{1}}}));
  const Tensor row_x = Tensor::of<float>({1, 4}, std::vector<float>{1, 2, 3, 4}),
               row_y = Tensor::of<float>({1, 4}, std::vector<float>{5, 6, 7, 8});
  const Tensor right = Tensor::of<float>({2, 4}, std::vector<float>{11, 12, 13, 14, 15, 16, 17, 18});
  const Tensor left = Tensor::of<float>({2, 4}, std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  const Program pieces(b.finish(), kPieces);
  expect_same_bits(run(pieces, {row_x, row_y, right}), {joined_columns(left, right)});
}

TEST(Pieces, ASplitAlongAnotherAxisDoesNotReadRowsWithAStep) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {2, 8});
  ValueId two = b.ints("two", {4, 4}), one = b.ints("one", {1, 1});
  const auto columns = b.nodes("Split", {b.node("Relu", {x}), two}, 2, {{"axis", int64_t{1}}});
  const auto rows = b.nodes("Split", {columns[1], one}, 2, {{"axis", int64_t{0}}});
  b.output(b.node("Neg", {rows[1]}));
  std::vector<float> numbers(16);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  const Program pieces(b.finish(), kPieces);
  expect_same_bits(run(pieces, {Tensor::of<float>({2, 8}, numbers)}), {Tensor::of<float>({1, 4}, std::vector<float>{-12, -13, -14, -15})});
}

TEST(Pieces, PartsOfRowsKeepTheirStepsWhereTheWholeMoves) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {2, 2});
  const auto columns = b.nodes("Split", {b.node("Relu", {x}), b.ints("ones", {1, 1})}, 2, {{"axis", int64_t{1}}});
  b.output(b.node("Concat", {columns[1], columns[0]}, {{"axis", int64_t{0}}}));
  ValueId whole = b.node("Relu", {x});
  const auto parts = b.nodes("Split", {whole, b.ints("halves", {1, 1})}, 2, {{"axis", int64_t{1}}});
  b.output(b.node("Concat", {parts[1], parts[1]}, {{"axis", int64_t{1}}}));
  b.output(b.node("Concat", {whole, whole}, {{"axis", int64_t{0}}}));
  const Program pieces(b.finish(), kPieces);
  expect_same_bits(run(pieces, {Tensor::of<float>({2, 2}, std::vector<float>{1, 2, 3, 4})}),
                   {Tensor::of<float>({4, 1}, std::vector<float>{2, 4, 1, 3}), Tensor::of<float>({2, 2}, std::vector<float>{2, 2, 4, 4}),
                    Tensor::of<float>({4, 2}, std::vector<float>{1, 2, 3, 4, 1, 2, 3, 4})});
}

TEST(Pieces, WithoutElementsLieNowhere) {
  GraphBuilder b;
  ValueId x = b.node("Relu", {b.input("x", DType::float32, {b.symbol("n"), 2})});
  const auto columns = b.nodes("Split", {x, b.ints("ones", {1, 1})}, 2, {{"axis", int64_t{1}}});
  b.output(b.node("Concat", {columns[1], columns[0]}, {{"axis", int64_t{1}}}));
  const Program pieces(b.finish(), kPieces);
  EXPECT_EQ(run(pieces, {Tensor(DType::float32, {0, 2})})[0].tensor().shape(), (Shape{0, 2}));
  expect_same_bits(run(pieces, {Tensor::of<float>({1, 2}, std::vector<float>{1, 2})}),
                   {Tensor::of<float>({1, 2}, std::vector<float>{2, 1})});
}

TEST(Pieces, OutputsOfTheGraphAreWrittenPieceByPiece) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {b.symbol("n"), 8});
  b.output(b.node("Concat", {b.node("Tanh", {x}), x, b.node("Exp", {x})}, {{"axis", int64_t{0}}}));
  auto graph = b.finish();
  Program pieces(graph, kPieces), apart(graph, kApart);
  for (int64_t n : {1, 7, 30, 5, 0, 64}) {
    const std::vector<Datum> feeds{numbers({n, 8}, 3)};
    expect_same_bits(run(pieces, feeds), run(apart, feeds));
  }
  EXPECT_EQ(arena_of(pieces), 0U) << "nothing is left that is not the output's";
}

TEST(Pieces, AnOutputThatIsBoundToAFeedIsWrittenLast) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {4, 8});
  ValueId half = b.nodes("Split", {x}, 2, {{"axis", int64_t{0}}, {"num_outputs", int64_t{2}}})[1];
  b.output(b.node("Concat", {b.node("Exp", {half}), b.node("Tanh", {half})}, {{"axis", int64_t{0}}}));
  auto graph = b.finish();
  Program pieces(graph, kPieces);
  const Tensor x0 = numbers({4, 8}, 8);
  const std::vector<Datum> expected = run(Program(graph, kApart), {x0});
  const Tensor both = x0.clone();
  std::vector<Datum> outputs(1);
  const std::vector<Datum> feeds{both}, bound{both};
  pieces.run(feeds, outputs, {}, bound);
  expect_same_bits(outputs, expected);
  EXPECT_EQ(outputs[0].tensor().raw(), both.raw());
}

TEST(Pieces, ASplitsOutputsAreViewsOfItsInput) {
  for (bool of_feed : {false, true}) {
    GraphBuilder b;
    ValueId x = b.input("x", DType::float32, {b.symbol("n"), 16});
    auto parts = b.nodes("Split", {of_feed ? x : b.node("Tanh", {x})}, 3, {{"axis", int64_t{0}}, {"num_outputs", int64_t{3}}});
    b.output(b.node("Exp", {parts[2]}));
    b.output(b.node("Sub", {b.node("Neg", {parts[0]}), parts[1]}));
    auto graph = b.finish();
    Program pieces(graph, kPieces), apart(graph, kApart);
    for (int64_t n : {3, 9, 30, 6}) {
      const std::vector<Datum> feeds{numbers({n, 16}, 4)};
      const Tensor before = feeds[0].tensor().clone();
      expect_same_bits(run(pieces, feeds), run(apart, feeds));
      EXPECT_EQ(std::memcmp(before.raw(), feeds[0].tensor().raw(), before.size_bytes()), 0) << "a feed was written to";
    }
    EXPECT_GE(num_pieces(pieces), 3U);
  }
}

// Makes a graph in which every layer reads all values that the layers before it made: x0; x0 x1; x0 x1 x2 …
std::shared_ptr<Graph> dense_block(int layers, bool cumulative) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {1, 4, 16, 16});
  std::vector<ValueId> made{b.node("Tanh", {x})};
  ValueId joined = made[0];
  for (int i = 0; i < layers; ++i) {
    const int64_t channels = 4 * (i + 1);
    ValueId w = b.constant("w" + std::to_string(i), numbers({4, channels, 1, 1}, static_cast<uint32_t>(i)));
    ValueId fresh = b.node("Relu", {b.node("Conv", {joined, w})});
    made.push_back(fresh);
    joined = cumulative ? b.node("Concat", {joined, fresh}, {{"axis", int64_t{1}}}) : b.node("Concat", made, {{"axis", int64_t{1}}});
  }
  b.output(b.node("GlobalAveragePool", {joined}));
  return b.finish();
}

TEST(Pieces, ADenseBlockHoldsEveryLayerOnce) {
  for (bool cumulative : {false, true}) {
    auto graph = dense_block(6, cumulative);
    Program pieces(graph, kPieces), copies(graph, kCopies), apart(graph, kApart);
    const std::vector<Datum> feeds{numbers({1, 4, 16, 16}, 5)};
    expect_same_bits(run(pieces, feeds), run(apart, feeds));
    run(copies, feeds);
    EXPECT_LE(arena_of(pieces), arena_of(copies));
    EXPECT_GE(num_pieces(pieces), 7U);
  }
}

TEST(Pieces, AValueThatIsNeededAfterTheOutputIsWrittenOverStaysApart) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {2, 8});
  ValueId a = b.node("Tanh", {x}), joined = b.node("Concat", {a, b.node("Exp", {x})}, {{"axis", int64_t{0}}});
  ValueId changed = b.node("Relu", {b.node("Neg", {joined})});  // two updates in place, one after the other
  b.output(b.node("MatMul", {changed, b.node("Transpose", {a}, {{"perm", std::vector<int64_t>{1, 0}}})}));
  auto graph = b.finish();
  const std::vector<Datum> feeds{numbers({2, 8}, 6)};
  expect_same_bits(run(Program(graph, kPieces), feeds), run(Program(graph, kApart), feeds));
}

// Along the last axis, the rows of one piece alternate with rows of other pieces. The kernels in this test can read and write such rows in
// place.
TEST(Pieces, ImagesAreJoinedByTheirChannels) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {b.symbol("n"), 12, 12, 8});
  uint32_t seed = 10;
  auto conv = [&](ValueId value, int64_t channels, int64_t kernel, int64_t group = 1) {
    const int64_t in = (*b.graph().type(value).shape)[3].value(), pad = kernel / 2;
    ++seed;
    ValueId w = b.constant("w" + std::to_string(seed), numbers({channels, in / group, kernel, kernel}, seed));
    return b.node("NhwcConv", {value, w},
                  {{"pads", std::vector<int64_t>{pad, pad, pad, pad}}, {"group", group}, {"activation", std::string("relu")}}, {},
                  "treadle");
  };
  // A module of SqueezeNet, one of GhostNet, one of ShuffleNet, and a dense block's affine parts.
  ValueId fire = b.node("Concat", {conv(x, 16, 1), conv(x, 20, 3)}, {{"axis", int64_t{3}}});
  ValueId primary = conv(fire, 24, 1);
  ValueId ghost = b.node("Concat", {primary, conv(primary, 24, 3, 24)}, {{"axis", int64_t{-1}}});
  auto halves = b.nodes("Split", {ghost}, 2, {{"axis", int64_t{3}}, {"num_outputs", int64_t{2}}});
  ValueId shuffle = b.node("Concat", {halves[0], conv(halves[1], 24, 1)}, {{"axis", int64_t{3}}});
  ValueId scale = b.constant("scale", numbers({48}, 6)), shift = b.constant("shift", numbers({48}, 7));
  ValueId dense = conv(b.node("NhwcAffine", {shuffle, scale, shift}, {}, {}, "treadle"), 16, 3);
  b.output(b.node("NhwcGlobalAveragePool", {b.node("Concat", {shuffle, dense}, {{"axis", int64_t{3}}})}, {}, {}, "treadle"));
  auto graph = b.finish();
  Program pieces(graph, kPieces), copies(graph, kCopies), apart(graph, kApart);
  for (int64_t n : {1, 3, 2}) {
    const std::vector<Datum> feeds{numbers({n, 12, 12, 8}, 4)};
    expect_same_bits(run(pieces, feeds), run(apart, feeds));
    run(copies, feeds);
    EXPECT_LE(arena_of(pieces), arena_of(copies));
  }
  EXPECT_GE(num_pieces(pieces), 8U);
}

// The cache of a partial run replaces or stores values whose rows alternate with rows of other values.
TEST(Pieces, CachedValuesLieBetweenOthersRows) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {1, 4, 4, 8});
  auto conv = [&](const std::string& name, uint32_t seed) {
    return b.node("NhwcConv", {x, b.constant("w" + name, numbers({6, 8, 1, 1}, seed))}, {}, name, "treadle");
  };
  ValueId left = conv("left", 1), right = conv("right", 2);
  b.output(b.node("NhwcGlobalAveragePool", {b.node("Concat", {left, right}, {{"axis", int64_t{3}}})}, {}, {}, "treadle"));
  const std::string name = b.graph().value(right).name;
  auto graph = b.finish();
  Program pieces(graph, kPieces), apart(graph, kApart);
  ASSERT_EQ(num_pieces(pieces), 2U);
  const std::vector<Datum> feeds{numbers({1, 4, 4, 8}, 3)};
  std::vector<Datum> results[2];
  Tensor kept[2];
  for (const Program* program : {&pieces, &apart}) {
    const size_t which = program == &pieces ? 0 : 1;
    auto cache = std::make_shared<exec::ValueCache>();
    (*cache)[name] = Datum();
    exec::Frame keeping(program->frames()), putting(program->frames());
    auto run_with = [&](exec::Frame& frame) {
      frame.start(feeds, {}, {}, {});
      frame.set_cache(cache);
      EXPECT_TRUE(frame.advance());
      std::vector<Datum> outputs(1);
      frame.take_outputs(outputs);
      return outputs;
    };
    run_with(keeping);
    kept[which] = cache->at(name).tensor();
    cache->at(name) = Datum(numbers({1, 4, 4, 6}, 9));
    results[which] = run_with(putting);
  }
  expect_same_bits({Datum(kept[0])}, {Datum(kept[1])});
  expect_same_bits(results[0], results[1]);
}

TEST(Pieces, KernelsThatDoNotAskWhereRowsAreGetCopies) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {3, 4});
  b.output(b.node("Neg", {b.node("Concat", {b.node("Tanh", {x}), b.node("Exp", {x})}, {{"axis", int64_t{1}}})}));
  auto graph = b.finish();
  Program pieces(graph, kPieces);
  const std::vector<Datum> feeds{numbers({3, 4}, 7)};
  expect_same_bits(run(pieces, feeds), run(Program(graph, kApart), feeds));
  EXPECT_EQ(num_pieces(pieces), 0U);
}

// Makes a graph of Concats of Concats, Splits of concatenated values, updates in place, views, values that are read much later, and several
// outputs.
std::shared_ptr<Graph> random_graph(uint32_t seed) {
  std::mt19937 random(seed);
  auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  GraphBuilder b;
  const bool symbolic = seed % 2 == 0;
  const Dim n = symbolic ? b.symbol("n") : Dim(6);
  std::vector<ValueId> values;
  for (int i = 0; i < 2; ++i) values.push_back(b.input("x" + std::to_string(i), DType::float32, {n, 8}));
  ValueId half = b.constant("half", Tensor::scalar(0.5F));
  auto rows = [&](ValueId value) { return (*b.graph().type(value).shape)[0]; };
  for (int i = 0; i < 40; ++i) {
    ValueId x = values[below(values.size())];
    ValueId y = below(3) == 0 ? x : values[below(values.size())];
    switch (below(9)) {
      case 0:
      case 1: {
        std::vector<ValueId> inputs{x};
        for (size_t k = 0; k <= below(3); ++k) inputs.push_back(values[below(values.size())]);
        values.push_back(b.node("Concat", inputs, {{"axis", int64_t{0}}}));
        break;
      }
      case 2: {
        auto parts = b.nodes("Split", {x}, 2, {{"axis", int64_t{0}}, {"num_outputs", int64_t{2}}});
        values.insert(values.end(), parts.begin(), parts.end());
        break;
      }
      case 3: values.push_back(b.node("Tanh", {x})); break;
      case 4: values.push_back(b.node("Relu", {b.node("Sub", {x, half})})); break;
      case 5: values.push_back(b.node("Neg", {b.node("Mul", {x, half})})); break;
      case 6: values.push_back(rows(x) == rows(y) ? b.node("Sub", {x, y}) : b.node("Abs", {x})); break;
      case 7: {
        ValueId flat = b.node("Reshape", {x, b.ints("f" + std::to_string(i), {-1})});
        values.push_back(b.node("Reshape", {b.node("Add", {flat, half}), b.ints("r" + std::to_string(i), {-1, 8})}));
        break;
      }
      // The node reads all of another value, which may lie within x.
      default: values.push_back(b.node("Sub", {x, b.node("ReduceMean", {y})})); break;
    }
    // Drops large values: sizes that double with every Concat would grow without bound.
    if (const auto& d = rows(values.back()); d.is_const() && d.value() > 200) values.pop_back();
    if (symbolic && values.size() > 14) values.erase(values.begin() + 2, values.begin() + 4);
  }
  std::set<ValueId> outputs{values.back()};
  for (int i = 0; i < 3; ++i) outputs.insert(values[2 + below(values.size() - 2)]);
  for (ValueId value : outputs) b.output(value, "o" + std::to_string(index_of(value)));
  return b.finish();
}

TEST(Pieces, RandomGraphsGiveTheSameBits) {
  ThreadPool pool(4);
  exec::RunControl control;
  control.threads.pool = &pool;
  size_t parts = 0;
  for (uint32_t seed = 0; seed < 120; ++seed) {
    auto graph = random_graph(seed);
    Program apart(graph, kApart), pieces(graph, kPieces);
    Program parallel(graph, {.parallel = true, .always_parallel = true, .pieces_in_place = true});
    parts += num_pieces(pieces);
    for (int64_t n : {6, 7, 20, 1}) {
      if (seed % 2 == 1 && n != 6) continue;
      const std::vector<Datum> feeds{numbers({n, 8}, seed), numbers({n, 8}, seed + 1000)};
      std::vector<Datum> expected;
      try {
        expected = run(apart, feeds);
      } catch (const Error&) {
        continue;  // Split cannot halve a single row
      }
      const std::string what = "seed " + std::to_string(seed) + ", n = " + std::to_string(n);
      expect_same_bits(run(pieces, feeds), expected, what);
      for (int threads : {0, 2}) {
        control.threads.inter_op = threads;
        expect_same_bits(run(parallel, feeds, control), expected, what + ", parallel");
      }
    }
  }
  EXPECT_GT(parts, 500U);
}

}  // namespace
}  // namespace treadle
