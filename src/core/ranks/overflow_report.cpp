#include "core/ranks/overflow_report.h"

#include "core/base/id_registry.h"

namespace treadle {
namespace {
IdRegistry<OverflowReport>& reports() { return IdRegistry<OverflowReport>::instance(); }
}  // namespace

OverflowReport::OverflowReport() : id_(reports().add(this)) {}
OverflowReport::~OverflowReport() { reports().remove(id_); }
OverflowReport& OverflowReport::find(int64_t id) { return reports().find(id, "trainer's report"); }

void OverflowReport::begin_step() {
  std::lock_guard lock(mutex_);
  loss_.reset();
}

void OverflowReport::set(float loss) {
  std::lock_guard lock(mutex_);
  loss_ = loss;
}

std::optional<float> OverflowReport::loss() const {
  std::lock_guard lock(mutex_);
  return loss_;
}

}  // namespace treadle
