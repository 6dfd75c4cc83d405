#include "exec/placed/placed_schedule.h"

#include <utility>
#include <vector>

#include "exec/placed/placed_rounds.h"
#include "exec/placed/placed_run.h"
#include "exec/plan/plans.h"
#include "exec/run/frame.h"

namespace treadle::exec {

PlacedSchedule::PlacedSchedule(Plans& plans, FramePool& frames, std::span<const std::shared_ptr<Device>> devices, const StreamPlan& plan,
                               const std::shared_ptr<DeviceMemory>& memory)
    : plans_(plans), frames_(frames), steps_(plans.program(), plan, devices), crossings_(steps_), memory_(steps_, memory) {
  for (const auto& [instruction, of_bodies] : plan.bodies)
    for (size_t b = 0; b < of_bodies.size(); ++b) {
      const Program& body = *plans.program().instructions()[instruction].bodies[b];
      bodies_.emplace(&body, std::make_unique<PlacedSchedule>(plans.of_body(body), frames.of_body(body), devices, of_bodies[b], memory));
    }
}

PlacedSchedule::~PlacedSchedule() = default;

std::unique_ptr<PlacedRun> PlacedSchedule::take() {
  return runs_.take([&] { return std::make_unique<PlacedRun>(*this); });
}

void PlacedSchedule::give_back(std::unique_ptr<PlacedRun> run) noexcept { runs_.give_back(std::move(run)); }

std::unique_ptr<PlacedRounds> PlacedSchedule::take_rounds() {
  return rounds_.take([&] { return std::make_unique<PlacedRounds>(*this); });
}

void PlacedSchedule::give_back(std::unique_ptr<PlacedRounds> rounds) noexcept { rounds_.give_back(std::move(rounds)); }

namespace {

class TakenRounds final : public BodyRunner::Rounds {
 public:
  TakenRounds(PlacedSchedule& schedule, const PlacedMemory& around)
      : schedule_(schedule), around_(around), rounds_(schedule.take_rounds()) {}
  ~TakenRounds() override { schedule_.give_back(std::move(rounds_)); }
  TakenRounds(const TakenRounds&) = delete;
  TakenRounds& operator=(const TakenRounds&) = delete;

  void run(std::span<const Datum> feeds, std::span<Datum> results, const RunControl& control, std::span<const int64_t> parent_values,
           size_t looked_at) override {
    const Residency::BodyUnderWay under_way(around_.residency());
    rounds_->run(feeds, results, control, parent_values, looked_at);
  }
  void finish() override { rounds_->finish(); }

 private:
  PlacedSchedule& schedule_;
  const PlacedMemory& around_;
  std::unique_ptr<PlacedRounds> rounds_;
};

}  // namespace

std::unique_ptr<BodyRunner::Rounds> PlacedBodies::rounds(const Program& body) {
  return std::make_unique<TakenRounds>(schedule_.of_body(body), memory_);
}

void PlacedBodies::run(const Program& body, std::span<const Datum> feeds, std::span<Datum> results, const RunControl& control,
                       std::span<const int64_t> parent_values, size_t looked_at) {
  const Residency::BodyUnderWay under_way(memory_.residency());
  PlacedSchedule& schedule = schedule_.of_body(body);
  struct Taken {
    PlacedSchedule& schedule;
    std::unique_ptr<PlacedRun> run = schedule.take();
    ~Taken() { schedule.give_back(std::move(run)); }
  } taken{schedule};
  std::vector<OutputMemory> memory(results.size());
  for (size_t k = 0; k < memory.size(); ++k) memory[k].stays = k != looked_at;
  taken.run->start(feeds, {}, control, memory, parent_values);
  if (!taken.run->advance()) throw_stops_at_yield();
  taken.run->take_outputs(results);
}

}  // namespace treadle::exec
