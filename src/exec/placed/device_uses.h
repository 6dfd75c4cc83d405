// Tells which values in a device's memory each step uses, and when a value is used next.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "exec/placed/placed_steps.h"
#include "exec/plan/binding.h"

namespace treadle::exec {

/// A unit is moved as a whole between a device's memory and the host's. It is a location of the plan, or a block that kernels have packed.
/// The units of locations have the first numbers, those of packed blocks the next ones.
enum class UnitId : int32_t {};

/// The uses of values on one device. They depend only on the plan, not on extents. A position is the number of a step in the order in which
/// steps are issued (PlacedSteps).
class DeviceUses {
 public:
  DeviceUses(const PlacedSteps& steps, int device);

  size_t num_units() const { return uses_.size(); }
  IdRange<UnitId> packed() const { return {id_at<UnitId>(num_locations()), uses_.next_id()}; }
  bool is_packed(UnitId unit) const { return index_of(unit) >= num_locations(); }
  /// @pre the unit is a location
  const StreamPlan::Location& location(UnitId unit) const { return steps_.location(location_of(unit)); }
  static UnitId unit_of(LocationId location) { return UnitId{static_cast<int32_t>(location)}; }
  static LocationId location_of(UnitId unit) { return LocationId{static_cast<int32_t>(unit)}; }

  /// Returns the units on the device that the step at `position` uses, in ascending order.
  std::span<const UnitId> at(size_t position) const { return at_[position]; }
  bool is_used_at(size_t position, UnitId unit) const;
  /// Returns the position of the first use after `position`, or INT64_MAX if there is none. @param lasting  true if the next run uses the
  /// unit again. That use counts too; its position is the number of steps of this run plus its position in the next one.
  int64_t next_use(UnitId unit, size_t position, bool lasting) const;
  /// Returns the size of the unit in bytes, or 0 if its extents are only known in the run.
  size_t size_bytes(UnitId unit, const Binding& binding) const;

 private:
  size_t num_locations() const { return steps_.plan().locations.size(); }
  using SharedPacked = std::unordered_map<const PackedState*, UnitId>;
  void add_kernel(const StreamPlan::Step& step, int device, SharedPacked& shared, std::vector<UnitId>& used);
  UnitId packed_unit(const Instruction& instruction, SharedPacked& shared);

  const PlacedSteps& steps_;
  std::vector<std::vector<UnitId>> at_;          // for each position of a step, the units that the step uses
  IdVector<UnitId, std::vector<int32_t>> uses_;  // for each unit, the positions of the steps that use it, ascending
  std::vector<const Instruction*> packed_for_;   // for each packed unit, an instruction whose kernel has packed it
};

}  // namespace treadle::exec
