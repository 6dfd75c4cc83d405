// Tests programs over several devices: they compute the host's results under any timing, have all fences that they need, and reuse no
// memory that is still needed.
#include "exec/placed/placed_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "device/cpu/cpu_device.h"
#include "device/sim/sim_device.h"
#include "exec/placed/placed_run.h"
#include "exec/run/frame.h"
#include "tests/exec/host_program.h"
#include "tests/exec/random_graphs.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using exec::DevicePlacement;
using exec::PlacedProgram;
using Program = testing::HostProgram;
using exec::ProgramOptions;
using exec::StreamPlan;
using testing::expect_same_bits;
using testing::GraphBuilder;
using testing::random_feeds;
using testing::random_graph;

const ProgramOptions kPlaced{.parallel = true};

std::vector<Datum> run_on_host(const Program& program, const std::vector<Datum>& feeds) {
  std::vector<Datum> outputs(program.output_slots().size());
  program.run(feeds, outputs, {});
  return outputs;
}

// Returns the run that the next caller gets: run() returns it to the program, which keeps it for reuse.
const exec::PlacedRun& next_run(PlacedProgram& placed) {
  const exec::RunHandle run = placed.take();
  const auto* kept = dynamic_cast<const exec::PlacedRun*>(run.get());
  return *kept;
}

std::vector<Datum> run(PlacedProgram& placed, const std::vector<Datum>& feeds, const exec::RunControl& control = {}) {
  std::vector<Datum> outputs(placed.program().output_slots().size());
  placed.run(feeds, outputs, control);
  return outputs;
}

// Returns three devices, the host and two accelerators. All are simulated, so that the checker sees every access.
std::vector<std::shared_ptr<Device>> three_devices(uint64_t seed, int max_delay_us) {
  auto checker = std::make_shared<AccessChecker>();
  SimOptions options{.name = "cpu", .seed = seed, .max_delay_us = max_delay_us, .host_accessible = true, .checker = checker};
  std::vector<std::shared_ptr<Device>> devices{SimDevice::create(options)};
  options.host_accessible = false;
  for (const char* name : {"sim:0", "sim:1"}) {
    options.name = name;
    ++options.seed;
    devices.push_back(SimDevice::create(options));
  }
  return devices;
}

DevicePlacement random_placement(const Program& program, uint32_t seed) {
  std::mt19937 random(seed);
  DevicePlacement placement = exec::place_instructions(program, {.default_device = 1});
  for (int& device : placement.of_instruction)
    if (device != DevicePlacement::kHost) device = static_cast<int>(random() % 3);
  return placement;
}

TEST(PlacedProgram, RandomGraphsOverThreeDevicesGiveTheHostsBits) {
  int copies = 0, fences = 0;
  for (uint32_t seed = 0; seed < 24; ++seed) {
    const bool data_dependent = seed % 2 == 0;  // otherwise steps are issued in bulk
    Program plain(random_graph(seed, data_dependent), ProgramOptions{.reuse_memory = false});
    Program program(random_graph(seed, data_dependent), kPlaced);
    StreamPlan plan = exec::plan_streams(program, random_placement(program, seed), 3, {.compute_streams = 1 + static_cast<int>(seed % 3)});
    copies += plan.num_copies();
    fences += plan.num_fences();
    PlacedProgram placed(program, three_devices(seed, seed % 4 < 2 ? 0 : 40), std::move(plan));
    for (uint32_t feeds = seed; feeds < seed + 2; ++feeds)
      expect_same_bits(run(placed, random_feeds(feeds)), run_on_host(plain, random_feeds(feeds)));
  }
  EXPECT_GT(copies, 24 * 10);
  EXPECT_GT(fences, 24 * 10);
}

// Bulks of later runs are submitted as earlier ones recorded them, also for other elements.
TEST(PlacedProgram, LaterRunsSubmitWhatWasRecorded) {
  int64_t num_submitted_again = 0;
  for (uint32_t seed = 0; seed < 16; ++seed) {
    Program plain(random_graph(seed, /*data_dependent=*/false), ProgramOptions{.reuse_memory = false});
    Program program(random_graph(seed, /*data_dependent=*/false), kPlaced);
    StreamPlan plan = exec::plan_streams(program, random_placement(program, seed), 3, {.compute_streams = 1 + static_cast<int>(seed % 2)});
    PlacedProgram placed(program, three_devices(seed, 20), std::move(plan));
    for (uint32_t feeds = 0; feeds < 6; ++feeds)
      expect_same_bits(run(placed, random_feeds(seed + feeds)), run_on_host(plain, random_feeds(seed + feeds)));
    num_submitted_again += next_run(placed).recorded().num_submitted_again();
  }
  EXPECT_GT(num_submitted_again, 0);
}

// Without one of the fences, nothing orders two accesses to the same memory. The checker must find that, whatever the timing.
TEST(PlacedProgram, EveryFenceThatIsRemovedIsMissed) {
  int removed = 0;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    Program program(random_graph(seed, /*data_dependent=*/false), kPlaced);
    const StreamPlan plan =
        exec::plan_streams(program, random_placement(program, seed), 3, {.compute_streams = 1 + static_cast<int>(seed % 3)});
    const std::vector<Datum> feeds = random_feeds(seed);
    for (exec::StepId s : plan.steps.ids()) {
      for (size_t w = 0; w < plan.steps[s].waits.size(); ++w) {
        PlacedProgram placed(program, three_devices(seed, 0), plan);
        std::vector<exec::StepId>& waits = placed.mutable_plan().steps[s].waits;
        waits.erase(waits.begin() + static_cast<ptrdiff_t>(w));
        ++removed;
        try {
          run(placed, feeds);
          ADD_FAILURE() << "seed " << seed << ": step " << index_of(s) << " need not have waited for step "
                        << index_of(plan.steps[s].waits[w]);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::internal);
          EXPECT_NE(std::string(error.what()).find("is not ordered after"), std::string::npos) << error.what();
        }
      }
    }
  }
  EXPECT_GT(removed, 150);
}

// For each fence, the test searches all other paths between the two steps that it orders. There must be none, otherwise the fence would be
// superfluous.
TEST(StreamPlan, NoFenceIsImpliedByOthers) {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    Program program(random_graph(seed), kPlaced);
    const StreamPlan plan = exec::plan_streams(program, random_placement(program, seed), 3, {.compute_streams = 2});
    IdVector<exec::StepId, std::vector<exec::StepId>> before(plan.steps.size());
    std::vector<exec::StepId> tail(plan.streams.size(), exec::kNoStep);
    for (exec::StepId s : plan.steps.ids()) {
      before[s] = plan.steps[s].waits;
      exec::StepId& last = tail[static_cast<size_t>(plan.steps[s].stream)];
      if (last != exec::kNoStep) before[s].push_back(last);
      last = s;
    }
    auto reaches = [&](exec::StepId from, exec::StepId to, bool directly) {
      std::vector<exec::StepId> open;
      for (exec::StepId p : before[to])
        if (directly || p != from) open.push_back(p);
      for (IdVector<exec::StepId, bool> seen(plan.steps.size()); !open.empty();) {
        const exec::StepId at = open.back();
        open.pop_back();
        if (at == from) return true;
        if (seen[at]) continue;
        seen[at] = true;
        open.insert(open.end(), before[at].begin(), before[at].end());
      }
      return false;
    };
    for (exec::StepId s : plan.steps.ids()) {
      for (exec::StepId wait : plan.steps[s].waits) EXPECT_FALSE(reaches(wait, s, false)) << index_of(wait) << " before " << index_of(s);
      for (exec::StepId a : IdRange(exec::StepId{}, s)) EXPECT_EQ(plan.happens_before(a, s), reaches(a, s, true));
    }
  }
}

// Makes x + 1 on one device, its square on the other, and the sum of both on the host.
std::shared_ptr<Graph> two_sided() {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {b.symbol("n")});
  ValueId left = b.node("Add", {x, b.constant("one", Tensor::scalar(1.0F))}, {}, "left");
  ValueId right = b.node("Mul", {left, left}, {}, "right");
  b.output(b.node("Sub", {right, left}, {}, "both"), "y");
  return b.finish();
}

DevicePlacement placement_of(const Program& program, const std::map<std::string, int>& of_node) {
  return exec::place_instructions(program, {.of_node = [&](const Node& node) {
                                    auto found = of_node.find(node.name);
                                    return found == of_node.end() ? -1 : found->second;
                                  }});
}

Tensor counted(int64_t n) {
  Tensor x(DType::float32, {n});
  for (int64_t i = 0; i < n; ++i) x.data<float>()[i] = static_cast<float>(i);
  return x;
}

// A value moves from one device to another: the sender's copy is an event that the receiver waits for.
TEST(PlacedProgram, AValueIsSentFromOneDeviceAndReceivedByAnother) {
  Program program(two_sided(), kPlaced);
  StreamPlan plan = exec::plan_streams(program, placement_of(program, {{"left", 1}, {"right", 2}, {"both", 0}}), 3);
  ASSERT_EQ(plan.num_copies(), 4);  // the copies: x to device 1; x + 1 to device 2 and to the host; its square to the host
  const auto send = std::find_if(plan.steps.begin(), plan.steps.end(), [&](const StreamPlan::Step& step) {
    return step.instruction == exec::kNoInstruction && plan.locations[step.source].device == 1 && plan.locations[step.target].device == 2;
  });
  ASSERT_NE(send, plan.steps.end());
  EXPECT_EQ(send->waits.size(), 1U);
  EXPECT_TRUE(send->records);
  const int stream = send->stream;
  EXPECT_EQ(plan.streams[static_cast<size_t>(stream)].device, 1);

  auto devices = three_devices(0, 0);
  PlacedProgram placed(program, devices, std::move(plan));
  // While the sender is paused, the receiver waits; then both finish.
  auto sender = std::static_pointer_cast<SimDevice>(devices[1]);
  Stream& sending = next_run(placed).stream(stream);
  sender->pause(sending);
  auto outputs = std::async(std::launch::async, [&] { return run(placed, {counted(5)}); });
  EXPECT_EQ(outputs.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  sender->resume(sending);
  const std::vector<Datum> results = outputs.get();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(results[0].tensor().data<float>()[i], static_cast<float>((i + 1) * (i + 1) - (i + 1)));
}

// A run ends only when all devices have finished, even if nobody waits for the results of some work.
TEST(PlacedProgram, ARunEndsWhenAllDevicesHaveEnded) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {4});
  b.output(b.node("Neg", {x}, {}, "first"), "y");
  b.output(b.node("Abs", {x}, {}, "second"), "z");
  Program program(b.finish(), kPlaced);
  for (int held : {1, 2}) {
    auto devices = three_devices(0, 0);
    PlacedProgram placed(program, devices, exec::plan_streams(program, placement_of(program, {{"first", 1}, {"second", 2}}), 3));
    int stream = -1;
    for (const StreamPlan::Step& step : placed.plan().steps)
      if (placed.plan().streams[static_cast<size_t>(step.stream)].device == held) stream = step.stream;
    auto device = std::static_pointer_cast<SimDevice>(devices[static_cast<size_t>(held)]);
    Stream& waiting = next_run(placed).stream(stream);
    device->pause(waiting);
    auto outputs = std::async(std::launch::async, [&] { return run(placed, {counted(4)}); });
    EXPECT_EQ(outputs.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
    device->resume(waiting);
    EXPECT_EQ(outputs.get()[1].tensor().data<float>()[3], 3);
  }
}

TEST(PlacedProgram, AnErrorNamesItsNodeAndEndsTheRunOnAllDevices) {
  GraphBuilder b;
  ValueId i = b.input("i", DType::int64, {1});
  ValueId found = b.node("Gather", {b.constant("table", counted(4)), i}, {}, "look_up");
  b.output(b.node("Neg", {found}, {}, "after"), "y");
  Program program(b.finish(), kPlaced);
  PlacedProgram placed(program, three_devices(3, 20),
                       exec::plan_streams(program, placement_of(program, {{"look_up", 1}, {"after", 2}}), 3));
  auto at = [](int64_t value) { return Tensor::scalar(value).reshaped({1}); };
  for (int round = 0; round < 3; ++round) {
    try {
      run(placed, {at(7)});
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("look_up"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("sim:0"), std::string::npos) << error.what();
    }
    EXPECT_EQ(run(placed, {at(2)})[0].tensor().data<float>()[0], -2);
  }
  std::atomic<bool> cancel{true};
  exec::RunControl control;
  control.stop.cancel = &cancel;
  try {
    run(placed, {at(1)}, control);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::cancelled);
  }
}

TEST(PlacedProgram, StopsAtYieldsAndGoesOnWithWhatIsHandedIn) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {b.symbol("n")});
  ValueId before = b.node("Neg", {x}, {}, "before");
  ValueId handed = b.node("Yield", {before}, {}, "stop", "treadle");
  b.output(b.node("Add", {handed, before}, {}, "after"), "y");
  Program program(b.finish(), kPlaced);
  PlacedProgram placed(program, three_devices(1, 20), exec::plan_streams(program, placement_of(program, {{"before", 1}, {"after", 2}}), 3));
  for (int64_t n : {3, 5}) {
    const exec::RunHandle stopping = placed.take();
    stopping->start(std::vector<Datum>{counted(n)}, {}, {}, {});
    EXPECT_FALSE(stopping->advance());
    const std::vector<Datum> yielded = stopping->yielded();
    ASSERT_EQ(yielded.size(), 1U);
    EXPECT_EQ(yielded[0].tensor().data<float>()[n - 1], static_cast<float>(1 - n));
    EXPECT_THROW(stopping->resume({}), Error);
    EXPECT_THROW(stopping->resume(std::vector<Datum>{Tensor(DType::int64, {n})}), Error);
    Tensor tens(DType::float32, {n});
    for (float& value : tens.span<float>()) value = 10;
    stopping->resume(std::vector<Datum>{tens});
    EXPECT_TRUE(stopping->advance());
    std::vector<Datum> outputs(1);
    stopping->take_outputs(outputs);
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(outputs[0].tensor().data<float>()[i], 10 - static_cast<float>(i));
  }
  // A run that is abandoned in the middle.
  const exec::RunHandle abandoned = placed.take();
  abandoned->start(std::vector<Datum>{counted(2)}, {}, {}, {});
  EXPECT_FALSE(abandoned->advance());
  std::vector<Datum> outputs(1);
  EXPECT_THROW(placed.run(std::vector<Datum>{counted(2)}, outputs, {}), Error);
}

TEST(PlacedProgram, ARunStopsAfterAnyNumberOfStepsAndGoesOn) {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    const bool data_dependent = seed % 2 == 0;
    const std::vector<Datum> feeds = random_feeds(seed), expected = run_on_host(Program(random_graph(seed, data_dependent)), feeds);
    const Program program(random_graph(seed, data_dependent), kPlaced);
    PlacedProgram placed(program, three_devices(seed, 20),
                         exec::plan_streams(program, random_placement(program, seed), 3, {.compute_streams = 2}));
    std::mt19937 random(seed);
    const exec::RunHandle stopping = placed.take();
    for (int round = 0; round < 2; ++round) {
      stopping->start(feeds, {}, {}, {});
      for (size_t left = placed.plan().steps.size(); left > 0;) {
        EXPECT_EQ(stopping->steps_left(), left);
        const size_t steps = random() % 6;
        left -= std::min(steps, left);
        EXPECT_EQ(stopping->advance(steps), left == 0);
      }
      std::vector<Datum> outputs(expected.size());
      stopping->take_outputs(outputs);
      expect_same_bits(outputs, expected);
    }
  }
}

// Feeds and fetches split a sequence of kernels that would otherwise be issued in bulk.
TEST(PlacedProgram, FeedsComeLaterAndOutputsAreFetchedEarly) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {b.symbol("n")}), late = b.input("late", DType::float32, {b.symbol("n")});
  ValueId negated = b.node("Neg", {b.node("Neg", {b.node("Neg", {x})})});
  b.output(negated, "y");
  b.output(b.node("Neg", {b.node("Mul", {negated, late})}), "z");
  b.output(late, "as_it_came");
  const Program program(b.finish(), kPlaced);
  PlacedProgram placed(program, three_devices(2, 20),
                       exec::plan_streams(program, exec::place_instructions(program, {.default_device = 1}), 3));
  exec::RunControl control;
  control.feeds.later = true;
  const exec::RunHandle stopping = placed.take();
  for (int64_t n : {4, 6}) {
    stopping->start(std::vector<Datum>{counted(n), {}}, {}, control, {});
    EXPECT_FALSE(stopping->has_output(0));
    EXPECT_FALSE(stopping->advance());
    ASSERT_TRUE(stopping->has_output(0));
    EXPECT_EQ(stopping->output(0).tensor().data<float>()[3], -3);
    EXPECT_FALSE(stopping->has_output(1));
    EXPECT_FALSE(stopping->has_output(2));
    EXPECT_THROW(stopping->advance(), Error);
    EXPECT_THROW(stopping->feed(0, counted(n)), Error);
    EXPECT_THROW(stopping->feed(1, counted(n + 1)), Error);
    stopping->feed(1, counted(n));
    EXPECT_TRUE(stopping->has_output(2));
    EXPECT_TRUE(stopping->advance());
    EXPECT_EQ(stopping->output(1).tensor().data<float>()[3], 9);
    std::vector<Datum> outputs(3);
    stopping->take_outputs(outputs);
    EXPECT_EQ(outputs[1].tensor().data<float>()[2], 4);
    EXPECT_EQ(outputs[2].tensor().data<float>()[2], 2);
  }
}

TEST(StreamPlan, AYieldStandsAlone) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {4});
  ValueId before = b.node("Neg", {b.node("Abs", {x})});
  b.output(b.node("Neg", {b.node("Yield", {before}, {}, "stop", "treadle")}), "y");
  Program program(b.finish(), kPlaced);
  const StreamPlan plan = exec::plan_streams(program, exec::place_instructions(program, {}), 1);
  for (const auto& bulk : plan.bulks)
    for (exec::StepId s : bulk)
      if (program.instructions()[plan.steps[s].instruction].is_yield) {
        EXPECT_EQ(bulk.size(), 1U);
      }
  EXPECT_LT(plan.bulks.size(), plan.steps.size());
}

std::shared_ptr<Graph> chain(int length) {
  GraphBuilder b;
  ValueId value = b.input("x", DType::float32, {b.symbol("n")});
  for (int i = 0; i < length; ++i) value = b.node(i % 2 == 0 ? "Neg" : "Abs", {value});
  b.output(value, "y");
  return b.finish();
}

TEST(StreamPlan, AChainIsOneBulkUnlessItIsCapped) {
  Program program(chain(40), kPlaced);
  DevicePlacement placement = exec::place_instructions(program, {.default_device = 1});
  auto bulks = [&](size_t cap) {
    std::vector<size_t> sizes;
    for (const auto& bulk : exec::plan_streams(program, placement, 2, {.max_bulk = cap}).bulks) sizes.push_back(bulk.size());
    return sizes;
  };
  EXPECT_EQ(bulks(SIZE_MAX), (std::vector<size_t>{1, 40, 1}));  // the bulks: the copy of x, the kernels, the copy of y
  EXPECT_EQ(bulks(15), (std::vector<size_t>{1, 15, 15, 10, 1}));
}

TEST(StreamPlan, DataDependentExtentsSwitchBulksOff) {
  Program program(random_graph(1), kPlaced);
  for (const auto& bulk : exec::plan_streams(program, random_placement(program, 1), 3).bulks) EXPECT_EQ(bulk.size(), 1U);
}

// Extents that a kernel finds out are known when it has been called, which on such devices is before it is done.
TEST(StreamPlan, TheHostDoesNotWaitForKernelsThatAreCalledAtOnce) {
  const Program program(random_graph(2), kPlaced);
  const DevicePlacement placement = random_placement(program, 2);
  const StreamPlan plan = exec::plan_streams(program, placement, 3, {.at_once = {true, false, true}});
  std::array<int, 3> dynamic{};
  for (const exec::StepId s : plan.steps.ids()) {
    const StreamPlan::Step& step = plan.steps[s];
    if (step.is_copy() || !program.instructions()[step.instruction].dynamic) continue;
    const int device = plan.streams[static_cast<size_t>(step.stream)].device;
    ++dynamic[static_cast<size_t>(device)];
    EXPECT_EQ(step.host_waits, device == 1);
  }
  for (const int count : dynamic) EXPECT_GT(count, 0);
  for (const auto& bulk : plan.bulks) EXPECT_EQ(bulk.size(), 1U);
}

TEST(PlacedProgram, DevicesThatCallWorkAtOnceGiveTheHostsBits) {
  const std::vector<std::shared_ptr<Device>> devices(3, cpu_device());
  for (uint32_t seed = 0; seed < 8; seed += 2) {
    Program plain(random_graph(seed), ProgramOptions{.reuse_memory = false});
    Program program(random_graph(seed), kPlaced);
    PlacedProgram placed(program, devices,
                         exec::plan_streams(program, random_placement(program, seed), 3, {.at_once = {true, true, true}}));
    for (uint32_t feeds = seed; feeds < seed + 3; ++feeds)
      expect_same_bits(run(placed, random_feeds(feeds)), run_on_host(plain, random_feeds(feeds)));
  }
}

TEST(StreamPlan, IndependentBranchesGoToDifferentStreams) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {4});
  ValueId left = b.node("Neg", {b.node("Abs", {x}, {}, "a0")}, {}, "a1");
  ValueId right = b.node("Neg", {b.node("Exp", {x}, {}, "b0")}, {}, "b1");
  b.output(b.node("Add", {left, right}), "y");
  Program program(b.finish(), kPlaced);
  const StreamPlan plan = exec::plan_streams(program, exec::place_instructions(program, {.default_device = 1}), 2, {.compute_streams = 2});
  std::map<std::string, int> stream;
  for (const StreamPlan::Step& step : plan.steps)
    if (step.instruction != exec::kNoInstruction) stream[program.instructions()[step.instruction].node->name] = step.stream;
  EXPECT_EQ(stream.at("a0"), stream.at("a1"));
  EXPECT_EQ(stream.at("b0"), stream.at("b1"));
  EXPECT_NE(stream.at("a0"), stream.at("b0"));
}

// The chain is issued as one group, before the node "between", which reads the same copy of x.
TEST(PlacedProgram, AValueStaysUntilAllItsReadersAreIssued) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {8});
  ValueId first = b.node("Neg", {x}, {}, "first");
  b.output(b.node("Abs", {x}, {}, "between"), "y");
  b.output(b.node("Add", {first, x}, {}, "last"), "z");
  Program program(b.finish(), ProgramOptions{.reuse_memory = false, .parallel = true});
  StreamPlan plan = exec::plan_streams(program, exec::place_instructions(program, {.default_device = 1}), 3, {.compute_streams = 2});
  ASSERT_TRUE(std::any_of(plan.bulks.begin(), plan.bulks.end(), [](const auto& bulk) { return bulk.size() == 2; }));
  PlacedProgram placed(program, three_devices(0, 0), std::move(plan));
  const std::vector<Datum> outputs = run(placed, {counted(8)});
  EXPECT_EQ(outputs[0].tensor().data<float>()[7], 7);
  EXPECT_EQ(outputs[1].tensor().data<float>()[7], 0);
}

// Later values reuse freed bytes. The checker reports buffers that overlap while both may be in use.
TEST(PlacedProgram, ArenasReuseMemoryOnlyOfWhatTheDeviceHasPassed) {
  Program program(chain(40), ProgramOptions{.reuse_memory = false, .parallel = true});
  PlacedProgram placed(program, three_devices(5, 10),
                       exec::plan_streams(program, exec::place_instructions(program, {.default_device = 1}), 3));
  for (int64_t n : {256, 64, 1024, 1024}) {
    const std::vector<Datum> outputs = run(placed, {counted(n)});
    EXPECT_EQ(outputs[0].tensor().data<float>()[n - 1], static_cast<float>(n - 1));
  }
  // The arena holds two of the forty values at the same time, and has a quarter more for growth.
  EXPECT_LE(next_run(placed).arena_bytes(1), 2 * 1024 * sizeof(float) * 5 / 4);
}

TEST(PlacedProgram, RecordedWorkServesExtentsThatComeBack) {
  Program program(chain(40), ProgramOptions{.reuse_memory = false, .parallel = true});
  PlacedProgram placed(program, three_devices(5, 10),
                       exec::plan_streams(program, exec::place_instructions(program, {.default_device = 1}), 3));
  for (const int64_t n : {4096, 4096, 1000, 4096, 1000, 9000, 9000, 4096}) {
    const std::vector<Datum> outputs = run(placed, {counted(n)});
    EXPECT_EQ(outputs[0].tensor().data<float>()[n - 1], static_cast<float>(n - 1));
  }
}

TEST(DevicePlacement, NodesFollowTheirOperandsThenTheirReaders) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {4}), y = b.input("y", DType::float32, {4});
  ValueId before = b.node("Neg", {x}, {}, "before");
  ValueId placed = b.node("Abs", {before}, {}, "placed");
  ValueId after = b.node("Exp", {placed}, {}, "after");
  ValueId apart = b.node("Relu", {y}, {}, "apart");
  b.output(after, "o1");
  b.output(apart, "o2");
  Program program(b.finish(), kPlaced);
  auto device_of = [&](const DevicePlacement& placement) {
    std::map<std::string, int> result;
    for (exec::InstructionId i : program.instructions().ids()) result[program.instructions()[i].node->name] = placement.of_instruction[i];
    return result;
  };
  EXPECT_EQ(device_of(placement_of(program, {{"placed", 2}})),
            (std::map<std::string, int>{{"before", 2}, {"placed", 2}, {"after", 2}, {"apart", 0}}));
  EXPECT_EQ(device_of(exec::place_instructions(program, {.default_device = 1, .of_argument = {{"y", 2}}})),
            (std::map<std::string, int>{{"before", 1}, {"placed", 1}, {"after", 1}, {"apart", 2}}));
}

}  // namespace
}  // namespace treadle
