#include "exec/memory/admission.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <thread>

#include "exec/memory/governor.h"

namespace treadle::exec {
namespace {

using State = Admission::Run::State;
using Node = Admission::WaitingNode;

// Calls `work` on another thread and waits for it. Runs on that thread are not nested in the node that the caller is computing.
void elsewhere(const std::function<void()>& work) { std::thread(work).join(); }

struct Session {
  Admission admission;
  MemoryAccount account{"the session"};
  Admission::Run run(bool ends_by_itself = true) { return {admission, account, ends_by_itself}; }
};

TEST(Admission, AQueuedRunExpectsThoseThatArriveOrAreInside) {
  Session session;
  auto waits = session.run();
  waits.queue();
  EXPECT_FALSE(waits.expects_others()) << "there is no other one";
  elsewhere([&] {
    auto other = session.run();
    EXPECT_TRUE(waits.expects_others()) << "it arrives";
    other.queue();
    EXPECT_FALSE(waits.expects_others()) << "it waits itself";
    EXPECT_FALSE(other.expects_others());
    other.enter();
    EXPECT_TRUE(waits.expects_others()) << "it is inside";
    {
      const Node node(other, /*proceeds=*/false);
      EXPECT_EQ(other.state(), State::blocked);
      EXPECT_TRUE(waits.expects_others()) << "its node gives up at the latest";
    }
    EXPECT_EQ(other.state(), State::inside);
    other.leave();
    EXPECT_FALSE(waits.expects_others()) << "it has left";
  });
}

TEST(Admission, ARunThatIsInsideExpectsOthersOnly) {
  Session session;
  auto run = session.run();
  run.enter();
  EXPECT_FALSE(run.expects_others());
  const Node node(run, /*proceeds=*/false);
  EXPECT_FALSE(run.expects_others());
  elsewhere([&] {
    const auto other = session.run();
    EXPECT_TRUE(run.expects_others());
  });
}

TEST(Admission, NodesThatWouldFailDoNotExpectEachOther) {
  Session session;
  auto run = session.run();
  run.enter();
  const Node node(run, /*proceeds=*/false);
  EXPECT_FALSE(node.expects_others());
  elsewhere([&] {
    auto other = session.run();
    EXPECT_TRUE(node.expects_others()) << "the other run arrives";
    other.enter();
    EXPECT_TRUE(node.expects_others()) << "it is inside";
    {
      const Node first(other, /*proceeds=*/false), second(other, /*proceeds=*/false);
      EXPECT_FALSE(node.expects_others()) << "both runs are blocked";
      EXPECT_FALSE(first.expects_others());
    }
    EXPECT_TRUE(node.expects_others()) << "the other run goes on";
  });
  EXPECT_FALSE(node.expects_others());
}

TEST(Admission, ANodeThatWouldFailExpectsOneThatProceeds) {
  Session session;
  auto run = session.run();
  run.enter();
  const Node node(run, /*proceeds=*/false);
  elsewhere([&] {
    auto other = session.run();
    other.enter();
    const Node proceeds(other, /*proceeds=*/true);
    EXPECT_TRUE(node.expects_others());
    EXPECT_FALSE(proceeds.expects_others());
  });
  elsewhere([&] {
    auto stoppable = session.run(/*ends_by_itself=*/false);
    const Node proceeds(stoppable, /*proceeds=*/true);
    EXPECT_TRUE(node.expects_others()) << "it goes on at once, whatever its caller does afterwards";
  });
}

TEST(Admission, NobodyExpectsARunThatItsCallerStops) {
  Session session;
  auto run = session.run();
  run.enter();
  elsewhere([&] {
    auto stoppable = session.run(/*ends_by_itself=*/false);
    EXPECT_FALSE(run.expects_others());
    stoppable.queue();
    stoppable.enter();
    EXPECT_EQ(stoppable.state(), State::stoppable);
    EXPECT_FALSE(run.expects_others());
    EXPECT_TRUE(stoppable.expects_others()) << "it waits for the other one";
    const Node node(stoppable, /*proceeds=*/false);
    EXPECT_TRUE(node.expects_others());
  });
}

TEST(Admission, ARunInANodeOfAnotherExpectsNobody) {
  Session session;
  auto outer = session.run();
  outer.enter();
  elsewhere([&] {
    auto other = session.run();
    other.enter();
    auto inner = session.run();
    EXPECT_EQ(inner.state(), State::nested);
    inner.queue();
    EXPECT_FALSE(inner.expects_others());
    const Node node(inner, /*proceeds=*/false);
    EXPECT_FALSE(node.expects_others());
    inner.enter();
    EXPECT_EQ(inner.state(), State::nested);
  });
}

TEST(Admission, BytesReservedInASessionCountForItsJob) {
  Admission admission;
  const auto job = std::make_shared<MemoryAccount>("the job");
  const MemoryAccount first("the first session", 0, job), second("the second session", 0, job);
  Admission::Run run(admission, first, /*ends_by_itself=*/true);
  run.enter();
  run.reserve(100);
  run.reserve(20);
  EXPECT_EQ(run.reserved_by_others(first), 0U);
  elsewhere([&] {
    Admission::Run other(admission, second, /*ends_by_itself=*/true);
    other.reserve(7);
    EXPECT_EQ(other.reserved_by_others(second), 0U);
    EXPECT_EQ(other.reserved_by_others(*job), 120U);
    EXPECT_EQ(run.reserved_by_others(*job), 7U);
    EXPECT_EQ(other.reserved_by_others(first), 120U);
  });
  EXPECT_EQ(run.reserved_by_others(*job), 0U);
}

TEST(Admission, ARunThatForksCountsInItsOwnProcessOnly) {
  Governor governor;
  MemoryAccount account("the session");
  Admission::Run run(governor.admission, account, /*ends_by_itself=*/true);
  run.enter();
  run.reserve(100);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    run.leave();
    Admission::Run own(governor.admission, account, /*ends_by_itself=*/true);
    own.queue();
    const bool is_alone = !own.expects_others() && own.reserved_by_others(account) == 0;
    own.enter();
    own.reserve(3);
    _exit(is_alone && !own.expects_others() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace treadle::exec
