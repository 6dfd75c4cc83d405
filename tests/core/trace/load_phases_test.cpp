#include "core/trace/load_phases.h"

#include <gtest/gtest.h>

#include <thread>

namespace treadle {
namespace {

std::string outline(const LoadPhases& phases) {
  std::string text;
  for (const LoadPhase& phase : phases.phases()) text += phase.name + "<" + std::to_string(phase.parent) + " ";
  return text;
}

TEST(LoadPhases, NestAndAreNotedOnlyInAScope) {
  LoadPhases phases, inner;
  { const LoadPhases::Phase nobody("nobody"); }
  {
    const LoadPhases::Scope scope(phases);
    const LoadPhases::Phase make("make");
    { const LoadPhases::Phase first(std::string("first")); }
    {
      const LoadPhases::Phase second("second");
      const LoadPhases::Phase deep("deep");
      const LoadPhases::Scope other(inner);
      const LoadPhases::Phase elsewhere("elsewhere");
    }
    std::thread([] { const LoadPhases::Phase of_another_thread("of another thread"); }).join();
    const LoadPhases::Phase last("last");
  }
  EXPECT_EQ(outline(phases), "make<-1 first<0 second<0 deep<2 last<0 ");
  EXPECT_EQ(outline(inner), "elsewhere<-1 ");
  for (const LoadPhase& phase : phases.phases()) {
    EXPECT_LE(phase.start, phase.end);
    if (phase.parent < 0) continue;
    const LoadPhase around = phases.phases()[static_cast<size_t>(phase.parent)];
    EXPECT_GE(phase.start, around.start);
    EXPECT_LE(phase.end, around.end);
  }
}

TEST(LoadPhases, PhasesOfALoadBeforeKeepTheirParents) {
  LoadPhases read, made;
  {
    const LoadPhases::Scope scope(read);
    const LoadPhases::Phase outer("read");
    const LoadPhases::Phase inner("parse");
  }
  {
    const LoadPhases::Scope scope(made);
    const LoadPhases::Phase phase("other");
  }
  made.add(read);
  EXPECT_EQ(outline(made), "other<-1 read<-1 parse<1 ");
}

TEST(LoadPhases, MoreThanTheMostAreNotKept) {
  LoadPhases phases, many;
  constexpr size_t kMany = LoadPhases::kMost / 2 + 1;
  {
    const LoadPhases::Scope scope(many);
    for (size_t i = 0; i < kMany; ++i) const LoadPhases::Phase phase("graph");
  }
  for (int i = 0; i < 3; ++i) phases.add(many);
  EXPECT_EQ(phases.phases().size(), kMany);
}

TEST(LoadPhases, AnErrorEndsThem) {
  LoadPhases phases;
  const LoadPhases::Scope scope(phases);
  try {
    const LoadPhases::Phase outer("outer");
    throw 1;
  } catch (int) {
  }
  const LoadPhases::Phase next("next");
  EXPECT_EQ(outline(phases), "outer<-1 next<-1 ");
}

}  // namespace
}  // namespace treadle
