// Runs the graph fuzzer as a test, with a fixed set of random graphs, and tests the fuzzer's own parts.
#include <gtest/gtest.h>

#include "tests/graphs/generator.h"
#include "tests/graphs/interpreter.h"
#include "tests/graphs/settings.h"

namespace treadle::graphs {
namespace {

std::string first_failure(const Case& c, const std::vector<Setting>& settings) {
  const Judgement judgement = judge(c);
  for (const Setting& setting : settings) {
    std::string failure = run_case(c, judgement, setting);
    if (!failure.empty()) return to_string(setting) + "\n" + failure + "\n" + print(c);
  }
  return {};
}

TEST(Graphs, TheTextOfACaseIsReadBackTheSame) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    const std::string text = print(Generator(seed).generate());
    EXPECT_EQ(print(parse(text)), text) << seed;
  }
}

TEST(Graphs, TheInterpreterComputesWhatOnnxDefines) {
  const Case c = parse(R"(
opset 21
input x float32 [2,3]
constant starts int64 [1] = -1
constant ends int64 [1] = -100
constant axes int64 [1] = 1
constant steps int64 [1] = -2
y = Slice(x, starts, ends, axes, steps)
z = Softmax(x) axis=0
a, b = Split(x) axis=1 num_outputs=2
t = Transpose(b) perm=[1,0]
output y float32
output z float32
output a float32
output t float32
feeds
feed x [2,3] = 0 1 2 0 1 3
)");
  const std::vector<Expected> outputs = judge(c).at(0);
  EXPECT_EQ(outputs[0].value.array.f, (std::vector<double>{2, 0, 3, 0}));
  EXPECT_EQ(outputs[1].value.array.f[0], 0.5);
  EXPECT_NEAR(outputs[1].value.array.f[5], 0.7310585786300049, 1e-7);
  EXPECT_EQ(outputs[2].value.array.dims, (Dims{2, 2}));
  EXPECT_EQ(outputs[3].value.array.f, (std::vector<double>{2, 3}));
}

// ONNX does not define these cases: a length beyond the row in an empty tensor, elements of different ranks in a sequence, and NaN in
// operators that compare.
TEST(Graphs, TheInterpreterRefusesWhatOnnxDoesNotDefine) {
  const char* cases[] = {R"(
opset 21
input x float32 [0,1]
constant lengths int64 [1] = 1
z = ReverseSequence(x, lengths) batch_axis=1 time_axis=0
output z float32
feeds
feed x [0,1] =
)",
                         R"(
opset 21
input x float32 [1,1]
input y float32 []
s = SequenceConstruct(x, y)
z = ConcatFromSequence(s) axis=2 new_axis=1
output z float32
feeds
feed x [1,1] = 0
feed y [] = 0
)",
                         R"(
opset 21
input x float32 [2]
constant k int64 [1] = 1
quotient = Div(x, x)
z, places = TopK(quotient, k)
output z float32
feeds
feed x [2] = 1 0
)"};
  for (const char* text : cases) EXPECT_THROW(judge(parse(text)), Invalid) << text;
}

TEST(Graphs, AWrongResultIsNoticedAndRoundingIsNot) {
  const Case c = parse(R"(
opset 21
input x float32 [3]
y = Exp(x)
output y float32
feeds
feed x [3] = 0 1 2
)");
  const Judgement judgement = judge(c);
  Array y = judgement[0][0].value.array;
  y.f[1] *= 1 + 1e-7;
  EXPECT_EQ(compare(to_tensor(y), judgement[0][0]), "");
  y.f[1] *= 1 + 1e-4;
  EXPECT_NE(compare(to_tensor(y), judgement[0][0]), "");
}

TEST(Graphs, RandomGraphsGiveWhatTheInterpreterGives) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const std::string failure = first_failure(Generator(seed).generate(), {random_setting(random), random_setting(random)});
    EXPECT_TRUE(failure.empty() || failure.find("error not_implemented") != std::string::npos) << "seed " << seed << ", " << failure;
  }
}

}  // namespace
}  // namespace treadle::graphs
