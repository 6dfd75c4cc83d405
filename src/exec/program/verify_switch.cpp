#include "exec/program/verify_switch.h"

#include <atomic>

#include "core/base/verify_switch.h"

namespace treadle::exec {
namespace {

std::atomic<bool>& switch_of_all() {
  static std::atomic<bool> on = verifies_by_default("TREADLE_VERIFY_PLANS");
  return on;
}

}  // namespace

bool verifies_plans() { return switch_of_all().load(std::memory_order_relaxed); }
void set_verifies_plans(bool on) { switch_of_all().store(on); }

}  // namespace treadle::exec
