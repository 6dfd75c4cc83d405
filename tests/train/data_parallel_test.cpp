// Several trainers, as threads of one process, train one model together. Their results must equal those of one trainer with the joint
// batch.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <thread>

#include "tests/train/tiny_network.h"
#include "treadle/communicator.h"
#include "treadle/error.h"
#include "treadle/train.h"

namespace treadle::train {
namespace {

using namespace tiny;

// Makes a network without batch normalisation, because the statistics of a part of a batch differ from those of the joint batch.
Model plain_network() {
  return tiny_network(-1, [](onnx::GraphDef& graph) {
    std::erase_if(graph.nodes, [](const onnx::NodeDef& def) { return def.op_type == "BatchNormalization"; });
    std::erase_if(graph.initializers, [](const onnx::TensorDef& def) { return def.name.starts_with("bn."); });
    for (onnx::NodeDef& def : graph.nodes)
      if (def.op_type == "Relu") def.inputs[0] = "conv";
  });
}

Tensor rows(const Tensor& tensor, int64_t begin, int64_t end) {
  std::vector<int64_t> dims(tensor.shape().dims().begin(), tensor.shape().dims().end());
  const size_t row = tensor.size_bytes() / static_cast<size_t>(dims[0]);
  dims[0] = end - begin;
  Tensor part(tensor.dtype(), Shape(dims));
  std::memcpy(part.raw(), tensor.raw() + static_cast<size_t>(begin) * row, part.size_bytes());
  return part;
}

Batch part_of(const Batch& joint, int rank, int ranks) {
  const int64_t n = joint.labels.shape()[0], begin = n * rank / ranks, end = n * (rank + 1) / ranks;
  Batch part{.feeds = {}, .labels = rows(joint.labels, begin, end)};
  for (const auto& [name, value] : joint.feeds) part.feeds.emplace(name, rows(value.tensor(), begin, end));
  return part;
}

using OfRank = std::function<void(int rank, const std::shared_ptr<Communicator>& communicator)>;
/// Calls `work` on each rank. @return the error of each rank; empty if it had none
std::vector<std::string> on_ranks(int ranks, const OfRank& work, double deadline_s = 60) {
  const auto communicators = make_thread_communicators(ranks, deadline_s);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        work(rank, communicators[static_cast<size_t>(rank)]);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}
void expect_no_errors(const std::vector<std::string>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) EXPECT_EQ(errors[rank], "") << "of rank " << rank;
}

struct Trained {
  std::vector<double> losses;
  NamedTensors parameters, states;
};

constexpr int kSteps = 6;
std::vector<Batch> some_batches(int64_t size = 10) {
  std::vector<Batch> batches;
  for (uint32_t i = 0; i < kSteps; ++i) batches.push_back(make_batch(size, i + 1));
  return batches;
}

Trained result_of(Trainer& trainer, std::vector<double> losses) {
  Trained made{.losses = std::move(losses), .parameters = {}, .states = {}};
  for (const auto& [name, tensor] : trainer.parameters()) made.parameters.emplace(name, tensor.clone());
  for (const auto& [name, tensor] : trainer.states()) made.states.emplace(name, tensor.clone());
  return made;
}

Trained train_alone(const Model& model, const TrainerOptions& options, const std::vector<Batch>& batches) {
  Trainer trainer(model, options);
  std::vector<double> losses;
  for (const Batch& batch : batches) losses.push_back(trainer.step(batch.feeds, batch.labels));
  return result_of(trainer, std::move(losses));
}

std::vector<Trained> train_together(int ranks, const Model& model, TrainerOptions options, const std::vector<Batch>& batches) {
  std::vector<Trained> made(static_cast<size_t>(ranks));
  options.bucket_bytes = 256;  // the size is so small that the model has several buckets
  expect_no_errors(on_ranks(ranks, [&](int rank, const std::shared_ptr<Communicator>& communicator) {
    TrainerOptions own = options;
    own.communicator = communicator;
    Trainer trainer(model, own);
    std::vector<double> losses;
    for (const Batch& joint : batches) {
      const Batch part = part_of(joint, rank, ranks);
      losses.push_back(trainer.step(part.feeds, part.labels));
    }
    made[static_cast<size_t>(rank)] = result_of(trainer, std::move(losses));
  }));
  return made;
}

void expect_near(const NamedTensors& a, const NamedTensors& b, float tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a)
    for (int64_t i = 0; i < tensor.num_elements(); ++i)
      ASSERT_NEAR(tensor.data<float>()[i], b.at(name).data<float>()[i], tolerance) << name << " at " << i;
}
bool same_bits(const NamedTensors& a, const NamedTensors& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const auto& each) {
           return std::memcmp(each.second.raw(), b.at(each.first).raw(), each.second.size_bytes()) == 0;
         });
}
void expect_joint(const std::vector<Trained>& ranks, const Trained& joint, float tolerance = 2e-5F) {
  for (const Trained& rank : ranks) {
    ASSERT_EQ(rank.losses.size(), joint.losses.size());
    for (size_t i = 0; i < joint.losses.size(); ++i)
      EXPECT_NEAR(rank.losses[i], joint.losses[i], 1e-6 * std::max(1.0, joint.losses[i])) << "step " << i;
    expect_near(rank.parameters, joint.parameters, tolerance);
    EXPECT_TRUE(same_bits(rank.parameters, ranks[0].parameters));
    EXPECT_EQ(rank.losses, ranks[0].losses);
  }
}

TEST(DataParallel, EachOptimizerTakesTheStepOfTheJointBatch) {
  for (Optimizer optimizer :
       {Optimizer::sgd, Optimizer::adam, Optimizer::adamw, Optimizer::adagrad, Optimizer::rmsprop, Optimizer::lion, Optimizer::lamb}) {
    const TrainerOptions options{.optimizer = optimizer, .learning_rate = optimizer == Optimizer::sgd ? 0.1 : 0.003};
    const Trained joint = train_alone(plain_network(), options, some_batches());
    for (int ranks : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << "optimizer " << static_cast<int>(optimizer) << ", ranks " << ranks);
      expect_joint(train_together(ranks, plain_network(), options, some_batches()), joint);
    }
  }
}

TEST(DataParallel, RanksOfOtherLossesCountByWhatTheirMeansAreOf) {
  const std::vector<TrainerOptions> all = {
      {.ignore_index = 1, .learning_rate = 0.1},
      {.class_weights = {0.5F, 3.0F}, .learning_rate = 0.1},
      {.ignore_index = -1, .class_weights = {2.0F, 0.25F}, .label_smoothing = 0.1, .learning_rate = 0.1},
      {.loss = Loss::negative_log_likelihood, .ignore_index = 0, .learning_rate = 0.01},
  };
  for (const TrainerOptions& options : all)
    expect_joint(train_together(3, plain_network(), options, some_batches()), train_alone(plain_network(), options, some_batches()));
  std::vector<Batch> regression = some_batches(), distributions = some_batches();
  for (auto* batches : {&regression, &distributions})
    for (Batch& batch : *batches) {
      Tensor targets(DType::float32, {10, 2});
      for (int64_t i = 0; i < 20; ++i) targets.data<float>()[i] = i % 4 == 1 ? 0.75F : 0.25F;
      batch.labels = targets;
    }
  for (Loss loss : {Loss::mean_squared_error, Loss::l1, Loss::huber, Loss::binary_cross_entropy_with_logits}) {
    const TrainerOptions options{.loss = loss, .learning_rate = 0.05};
    expect_joint(train_together(3, plain_network(), options, regression), train_alone(plain_network(), options, regression));
  }
  const TrainerOptions divergence{.loss = Loss::kl_divergence, .learning_rate = 0.01};
  expect_joint(train_together(3, plain_network(), divergence, distributions), train_alone(plain_network(), divergence, distributions));
}

TEST(DataParallel, AccumulationClippingAndAveragesAreOfTheJointBatch) {
  const std::vector<TrainerOptions> all = {
      {.learning_rate = 0.1, .momentum = 0.9, .accumulation_steps = 3},
      {.ignore_index = 1, .learning_rate = 0.1, .clip_norm = 0.2, .accumulation_steps = 2},
      {.learning_rate = 0.1, .clip_value = 0.01},
      {.learning_rate = 0.1, .clip_norm = 0.05, .ema_decay = 0.9},
      {.learning_rate = 0.1, .momentum = 0.9, .fused_update = true},
  };
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    expect_joint(train_together(2, plain_network(), all[i], some_batches()), train_alone(plain_network(), all[i], some_batches()));
  }
}

TEST(DataParallel, EverySchedulerOverlapsTheSameBits) {
  const TrainerOptions options{.learning_rate = 0.1, .momentum = 0.9};
  const std::vector<Trained> expected = train_together(2, plain_network(), options, some_batches());
  TrainerOptions parallel = options, limited = options, unoptimized = options;
  parallel.session.execution_mode = ExecutionMode::parallel;
  parallel.session.intra_op_num_threads = 2;
  limited.session.memory_limit_bytes = 1 << 20;
  unoptimized.session.graph_optimization_level = GraphOptimizationLevel::disable_all;
  for (const TrainerOptions& other : {parallel, limited})
    EXPECT_TRUE(same_bits(train_together(2, plain_network(), other, some_batches())[1].parameters, expected[0].parameters));
  expect_joint(train_together(2, plain_network(), unoptimized, some_batches()), train_alone(plain_network(), options, some_batches()));
}

TEST(DataParallel, ReductionInBfloat16IsNearAndTheSameOnAllRanks) {
  TrainerOptions options{.learning_rate = 0.1};
  const Trained joint = train_alone(plain_network(), options, some_batches());
  options.reduction = DType::bfloat16;
  const std::vector<Trained> ranks = train_together(3, plain_network(), options, some_batches());
  EXPECT_FALSE(same_bits(ranks[0].parameters, joint.parameters));
  for (const Trained& rank : ranks) {
    EXPECT_TRUE(same_bits(rank.parameters, ranks[0].parameters));
    // The gradients of three ranks are summed in 8 bits, so after six steps the parameters may differ by a fraction of their change.
    expect_near(rank.parameters, joint.parameters, 0.01F);
  }
}

TEST(DataParallel, AShardedOptimizerKeepsItsPartAndTakesTheSameSteps) {
  for (const int accumulation : {1, 2}) {
    TrainerOptions options{.optimizer = Optimizer::adam, .learning_rate = 0.01, .clip_norm = 0.5, .accumulation_steps = accumulation};
    const std::vector<Trained> whole = train_together(2, plain_network(), options, some_batches());
    options.shard_optimizer = true;
    for (const Trained& rank : train_together(2, plain_network(), options, some_batches())) {
      EXPECT_TRUE(same_bits(rank.parameters, whole[0].parameters));
      EXPECT_EQ(rank.losses, whole[0].losses);
    }
  }
  std::array<size_t, 2> bytes{};
  expect_no_errors(on_ranks(2, [&](int rank, const std::shared_ptr<Communicator>& communicator) {
    Trainer trainer(plain_network(), {.optimizer = Optimizer::adam, .communicator = communicator, .shard_optimizer = true});
    for (const auto& [name, tensor] : trainer.optimizer_state()) bytes[static_cast<size_t>(rank)] += tensor.size_bytes();
  }));
  size_t all = 0;
  Trainer alone(plain_network(), {.optimizer = Optimizer::adam});
  for (const auto& [name, tensor] : alone.optimizer_state()) all += tensor.size_bytes();
  EXPECT_EQ(bytes[0] + bytes[1], all);
  for (size_t each : bytes) EXPECT_LT(each, all * 2 / 3);
}

TEST(DataParallel, AFailedStepIsAnErrorOfAllRanksAndTheNextOneWorks) {
  for (const int accumulation : {1, 2}) {
    std::vector<std::string> messages(3);
    std::vector<NamedTensors> after(3);
    const TrainerOptions options{.learning_rate = 0.1, .accumulation_steps = accumulation};
    expect_no_errors(on_ranks(3, [&](int rank, const std::shared_ptr<Communicator>& communicator) {
      TrainerOptions own = options;
      own.communicator = communicator;
      Trainer trainer(plain_network(), own);
      for (int i = 0; i < kSteps; ++i) {
        const Batch part = part_of(some_batches()[static_cast<size_t>(i)], rank, 3);
        if (i == 3) {
          try {
            trainer.step(rank == 1 ? Feeds{} : part.feeds, part.labels);
            ADD_FAILURE() << "rank " << rank << " took a step that rank 1 could not";
          } catch (const Error& error) {
            messages[static_cast<size_t>(rank)] = error.what();
          }
        }
        trainer.step(part.feeds, part.labels);
      }
      for (const auto& [name, tensor] : trainer.parameters()) after[static_cast<size_t>(rank)].emplace(name, tensor.clone());
    }));
    EXPECT_NE(messages[1].find("the input \"image\" is missing"), std::string::npos) << messages[1];
    for (size_t rank : {0U, 2U}) {
      EXPECT_NE(messages[rank].find("rank 1 failed"), std::string::npos) << messages[rank];
      EXPECT_NE(messages[rank].find("the input \"image\" is missing"), std::string::npos) << messages[rank];
    }
    const Trained joint = train_alone(plain_network(), options, some_batches());
    for (const NamedTensors& rank : after) expect_near(rank, joint.parameters, 2e-5F);
  }
}

TEST(DataParallel, ARankThatDoesNotComeIsNamedWhenTheDeadlineHasPassed) {
  const std::vector<std::string> errors = on_ranks(
      3,
      [](int rank, const std::shared_ptr<Communicator>& communicator) {
        Trainer trainer(plain_network(), {.communicator = communicator});
        for (int i = 0; i < 3 && !(rank == 2 && i == 1); ++i) {
          const Batch part = part_of(make_batch(6, static_cast<uint32_t>(i)), rank, 3);
          trainer.step(part.feeds, part.labels);
        }
      },
      0.5);
  EXPECT_EQ(errors[2], "");
  for (size_t rank : {0U, 1U}) EXPECT_NE(errors[rank].find("rank 2 has not come within 0.5 s"), std::string::npos) << errors[rank];
}

TEST(DataParallel, RanksThatWouldComputeDifferentThingsAreAnError) {
  const std::vector<std::string> errors = on_ranks(3, [](int rank, const std::shared_ptr<Communicator>& communicator) {
    Trainer(plain_network(), {.momentum = rank == 2 ? 0.5 : 0.9, .communicator = communicator});
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("rank 2 was made with another model or other options than rank 0"), std::string::npos) << error;
  for (const TrainerOptions& options : {TrainerOptions{.reduction = DType::bfloat16}, TrainerOptions{.shard_optimizer = true},
                                        TrainerOptions{.bucket_bytes = 0}, TrainerOptions{.communicator_name = "nothing"}})
    EXPECT_THROW(Trainer(plain_network(), options), Error);
}

TEST(DataParallel, AllBeginWithTheParametersOfRank0) {
  std::vector<Trained> made(2);
  expect_no_errors(on_ranks(2, [&](int rank, const std::shared_ptr<Communicator>& communicator) {
    Trainer trainer(tiny_network(), {.initialization = {{{"*.weight"}, Initializer::normal, 0.1}},
                                     .initialization_seed = static_cast<uint64_t>(rank),
                                     .communicator = communicator});
    made[static_cast<size_t>(rank)] = result_of(trainer, {});
  }));
  EXPECT_TRUE(same_bits(made[0].parameters, made[1].parameters));
}

TEST(DataParallel, RunningStatisticsAreTheMeanOverTheRanks) {
  const TrainerOptions options{.learning_rate = 0};
  const std::vector<Batch> batches = {make_batch(8, 5)};
  const std::vector<Trained> ranks = train_together(2, tiny_network(), options, batches);
  EXPECT_TRUE(same_bits(ranks[0].states, ranks[1].states));
  const Trained first = train_alone(tiny_network(), options, {part_of(batches[0], 0, 2)}),
                second = train_alone(tiny_network(), options, {part_of(batches[0], 1, 2)});
  for (const auto& [name, tensor] : ranks[0].states)
    for (int64_t c = 0; c < tensor.num_elements(); ++c)
      EXPECT_NEAR(tensor.data<float>()[c], (first.states.at(name).data<float>()[c] + second.states.at(name).data<float>()[c]) / 2, 1e-6)
          << name;
}

TEST(DataParallel, GradientsAreThoseOfTheJointBatch) {
  const Batch joint = make_batch(10, 3);
  NamedTensors expected = Trainer(plain_network(), {}).gradients(joint.feeds, joint.labels);
  expect_no_errors(on_ranks(3, [&](int rank, const std::shared_ptr<Communicator>& communicator) {
    Trainer trainer(plain_network(), {.communicator = communicator});
    const Batch part = part_of(joint, rank, 3);
    expect_near(trainer.gradients(part.feeds, part.labels), expected, 1e-6F);
  }));
}

// The checkpoint is written between accumulation steps, when the sums of the ranks differ.
TEST(DataParallel, ACheckpointGoesOnWithAnotherNumberOfRanks) {
  const std::vector<Batch> batches = some_batches(12);
  TrainerOptions options{.optimizer = Optimizer::adam, .learning_rate = 0.01, .accumulation_steps = 2};
  const Trained joint = train_alone(plain_network(), options, batches);
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "data_parallel_checkpoints";
  std::filesystem::remove_all(folder);
  constexpr size_t kFirst = 3;
  options.shard_optimizer = true;
  auto go_on = [&](int ranks, size_t from, size_t to, bool saves) {
    expect_no_errors(on_ranks(ranks, [&](int rank, const std::shared_ptr<Communicator>& communicator) {
      TrainerOptions own = options;
      own.communicator = communicator;
      Trainer trainer(plain_network(), own);
      CheckpointFolder checkpoints(folder.string());
      const auto resumed = checkpoints.resume(trainer);
      EXPECT_EQ(resumed.has_value(), from > 0);
      if (resumed) {
        EXPECT_EQ(resumed->metadata, (Metadata{{"note", "of rank 0"}}));
      }
      for (size_t i = from; i < to; ++i) {
        const Batch part = part_of(batches[i], rank, ranks);
        EXPECT_NEAR(trainer.step(part.feeds, part.labels), joint.losses[i], 1e-6) << "step " << i << " of " << ranks << " ranks";
      }
      if (saves) checkpoints.save(trainer, {{"note", rank == 0 ? "of rank 0" : "of another"}});
    }));
  };
  go_on(2, 0, kFirst, true);
  for (int ranks : {1, 2, 3}) go_on(ranks, kFirst, batches.size(), false);
  options.shard_optimizer = false;
  go_on(3, kFirst, batches.size(), false);
  Trainer alone(plain_network(), options);
  CheckpointFolder(folder.string()).resume(alone);
  for (size_t i = kFirst; i < batches.size(); ++i)
    EXPECT_NEAR(alone.step(batches[i].feeds, batches[i].labels), joint.losses[i], 1e-6) << "step " << i;
  std::filesystem::remove_all(folder);
}

TEST(DataParallel, AllRanksLearnWhyRank0CannotReadACheckpoint) {
  const std::vector<std::string> errors = on_ranks(2, [](int, const std::shared_ptr<Communicator>& communicator) {
    Trainer trainer(plain_network(), {.communicator = communicator});
    trainer.load_checkpoint("/no/such/checkpoint");
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("/no/such/checkpoint"), std::string::npos) << error;
}

}  // namespace
}  // namespace treadle::train
