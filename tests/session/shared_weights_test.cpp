// Tests sessions of one process that use the same weights.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <thread>

#include "tests/session/models.h"
#include "treadle/allocator.h"
#include "treadle/session.h"

namespace treadle::testing {
namespace {

constexpr int64_t kSize = 96;
constexpr size_t kMatrixBytes = kSize * kSize * sizeof(float);

Tensor matrix(int64_t seed) {
  Tensor w(DType::float32, Shape{kSize, kSize});
  for (int64_t i = 0; i < w.num_elements(); ++i)
    // These values cannot be represented in 8 bits, so no kernel treats them as 8-bit weights.
    w.data<float>()[i] = static_cast<float>((i * 7 + seed * 13) % 31 - 15) / 16 + static_cast<float>(i % 5) / 1024;
  return w;
}

// Makes a model that multiplies by one matrix, which is packed, and adds another one, which is not packed.
ModelBuilder product(int64_t seed = 1) {
  ModelBuilder b;
  b.input("x", {-1, kSize}).output("y", {-1, kSize}).input("z", {kSize, kSize}).output("s", {kSize, kSize});
  b.constant("w", matrix(seed)).constant("a", matrix(seed + 100));
  b.node("MatMul", {"x", "w"}, {"y"}).node("Sub", {"z", "a"}, {"s"});
  return b;
}

// Makes y = Conv(x), with enough channels for the layout pass. The weights are packed during binding.
ModelBuilder convolution() {
  ModelBuilder b;
  b.input("x", {1, 16, 12, 12}).output("y", {1, 32, 10, 10});
  Tensor w(DType::float32, Shape{32, 16, 3, 3});
  for (int64_t i = 0; i < w.num_elements(); ++i) w.data<float>()[i] = static_cast<float>(i % 23 - 11) / 8;
  b.constant("w", w).node("Conv", {"x", "w"}, {"y"});
  return b;
}

std::map<std::string, Datum> feeds_of(const Model& model) {
  std::map<std::string, Datum> feeds;
  for (const ValueInfo& input : model.inputs()) {
    Shape shape;
    shape.resize(static_cast<int>(input.shape.size()));
    for (size_t axis = 0; axis < input.shape.size(); ++axis) {
      const auto* extent = std::get_if<int64_t>(&input.shape[axis]);
      shape[static_cast<int>(axis)] = extent ? *extent : 5;
    }
    Tensor x(DType::float32, shape);
    for (int64_t i = 0; i < x.num_elements(); ++i) x.data<float>()[i] = static_cast<float>(i % 17 - 8);
    feeds[input.name] = x;
  }
  return feeds;
}

std::vector<float> run(const Session& session) {
  std::vector<float> all;
  for (const Datum& output : session.run(feeds_of(session.model()))) {
    const auto values = values_of(output);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

SessionOptions alone() {
  SessionOptions options;
  options.share_weights = false;
  return options;
}

TEST(SharedWeights, TwoSessionsOfTheSameBytesHoldThemOnce) {
  const std::vector<float> truth = run(Session(product().model(), alone()));
  const SharedWeightsStatistics before = shared_weights_statistics();
  Session first(product().model());
  EXPECT_EQ(run(first), truth);
  const SharedWeightsStatistics one = shared_weights_statistics();
  EXPECT_EQ(one.num_packed, before.num_packed + 1);
  EXPECT_GE(one.packed_bytes, before.packed_bytes + kMatrixBytes);
  EXPECT_EQ(one.num_constants, before.num_constants + 2);
  Session second(product().model());
  EXPECT_EQ(run(second), truth);
  const SharedWeightsStatistics two = shared_weights_statistics();
  EXPECT_EQ(two.num_packed, one.num_packed);
  EXPECT_EQ(two.packed_bytes, one.packed_bytes);
  EXPECT_EQ(two.constant_bytes, one.constant_bytes);
  EXPECT_EQ(two.hits, one.hits + 3) << "two constants and a packed form";
  EXPECT_EQ(two.misses, one.misses);
}

TEST(SharedWeights, GoWithTheLastSession) {
  const SharedWeightsStatistics before = shared_weights_statistics();
  auto first = std::make_unique<Session>(product(2).model());
  const std::vector<float> truth = run(*first);
  auto second = std::make_unique<Session>(product(2).model());
  first.reset();
  EXPECT_EQ(run(*second), truth) << "the first session is gone";
  EXPECT_EQ(shared_weights_statistics().num_packed, before.num_packed + 1);
  second.reset();
  EXPECT_EQ(shared_weights_statistics().num_packed, before.num_packed);
  EXPECT_EQ(shared_weights_statistics().constant_bytes, before.constant_bytes);
  EXPECT_EQ(run(Session(product(2).model())), truth) << "made anew";
}

TEST(SharedWeights, OtherWeightsAreNotTaken) {
  Session first(product(3).model());
  const auto one = run(first);
  Session second(product(4).model());
  EXPECT_NE(run(second), one);
  EXPECT_EQ(run(second), run(Session(product(4).model(), alone())));
}

TEST(SharedWeights, EverySessionIsChargedAsIfItWereAlone) {
  Session apart(product(5).model(), alone());
  Session first(product(5).model()), second(product(5).model());
  for (const Session* session : {&apart, &first, &second}) run(*session);
  const size_t packed = apart.memory_statistics()[MemoryClass::packed].bytes;
  const size_t weights = apart.memory_statistics()[MemoryClass::weights].bytes;
  EXPECT_GE(packed, kMatrixBytes);
  EXPECT_GE(weights, kMatrixBytes);
  EXPECT_EQ(first.memory_statistics()[MemoryClass::packed].bytes, packed);
  EXPECT_EQ(second.memory_statistics()[MemoryClass::packed].bytes, packed);
  EXPECT_EQ(first.memory_statistics()[MemoryClass::weights].bytes, weights);
  EXPECT_EQ(second.memory_statistics()[MemoryClass::weights].bytes, weights);
  auto account = std::make_shared<MemoryAccount>("all", 0);
  {
    SessionOptions options;
    options.memory_account = account;
    Session third(product(5).model(), options);
    EXPECT_GE(account->statistics()[MemoryClass::packed].bytes, kMatrixBytes);
  }
  EXPECT_EQ(account->bytes(), 0U) << "though the packed weights live on in the other sessions";
}

TEST(SharedWeights, FormsThatAreMadeWhenBindingAreShared) {
  Session apart(convolution().model(), alone());
  const std::vector<float> truth = run(apart);
  const SharedWeightsStatistics before = shared_weights_statistics();
  Session first(convolution().model());
  EXPECT_EQ(run(first), truth);
  const SharedWeightsStatistics one = shared_weights_statistics();
  EXPECT_EQ(one.num_packed, before.num_packed + 1);
  EXPECT_GT(one.packed_bytes, before.packed_bytes);
  Session second(convolution().model());
  EXPECT_EQ(run(second), truth);
  EXPECT_EQ(shared_weights_statistics().packed_bytes, one.packed_bytes);
  EXPECT_EQ(second.memory_statistics()[MemoryClass::packed].bytes, apart.memory_statistics()[MemoryClass::packed].bytes);
}

TEST(SharedWeights, AllocatorsAndTheOptionKeepSessionsApart) {
  Session first(product(6).model());
  const SharedWeightsStatistics one = shared_weights_statistics();
  SessionOptions guarded;
  guarded.allocator = make_allocator("guard");
  Session second(product(6).model(), guarded);
  EXPECT_EQ(run(second), run(first));
  EXPECT_GE(second.memory_statistics()[MemoryClass::packed].bytes, kMatrixBytes);
  EXPECT_EQ(shared_weights_statistics().num_packed, one.num_packed);
  Session third(product(6).model(), alone());
  EXPECT_EQ(run(third), run(first));
}

// Mapped weights are identified by their place in the file, and by the times of the file.
TEST(SharedWeights, AFileIsTheSameUntilItIsWritten) {
  const std::string path = ::testing::TempDir() + "shared_weights_" + std::to_string(getpid()) + ".onnx";
  for (bool mapped : {true, false}) {
    SessionOptions options;
    options.use_mmap = mapped;
    onnx::write_model_file(product(9).def(), path);
    const SharedWeightsStatistics before = shared_weights_statistics();
    Session first(path, options);
    const std::vector<float> truth = run(first);
    EXPECT_EQ(truth, run(Session(product(9).model(), alone())));
    const SharedWeightsStatistics one = shared_weights_statistics();
    Session second(path, options);
    EXPECT_EQ(run(second), truth);
    EXPECT_EQ(shared_weights_statistics().packed_bytes, one.packed_bytes);
    EXPECT_EQ(shared_weights_statistics().constant_bytes, one.constant_bytes);
    EXPECT_GT(shared_weights_statistics().hits, one.hits);
    EXPECT_EQ(one.num_packed, before.num_packed + 1);
    onnx::write_model_file(product(10).def(), path);
    Session third(path, options);
    EXPECT_EQ(run(third), run(Session(product(10).model(), alone())));
    EXPECT_NE(run(third), truth);
    EXPECT_EQ(run(first), truth);
  }
  unlink(path.c_str());
}

TEST(SharedWeights, SessionsThatComeAndGoAtOnceAgree) {
  const std::vector<float> truth = run(Session(product(7).model(), alone())), conv_truth = run(Session(convolution().model(), alone()));
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 12; ++i) {
        Session session(product(7).model()), conv(convolution().model());
        wrong += run(session) != truth;
        wrong += run(conv) != conv_truth;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(SharedWeights, AForkedChildGoesOnWithThem) {
  auto session = std::make_unique<Session>(product(8).model());
  const std::vector<float> truth = run(*session);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool same = run(Session(product(8).model())) == truth && run(*session) == truth;
    session.reset();
    same = same && run(Session(product(8).model())) == truth;
    _exit(same ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(run(*session), truth);
}

}  // namespace
}  // namespace treadle::testing
