// Exact search: finds offsets below a given height for blocks with known lifetimes, or proves that there are none.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace treadle::memory {

/// Depth-first search over canonical placements, in which every block is at 0 or on top of another one that is alive at the same time.
///
/// A state is a set of unplaced blocks and, for each section of time, a *floor*: no unplaced block may reach below it. The only question is
/// whether these blocks can be placed above these floors, no matter how the floors arose. Therefore:
///   - A refuted state refutes all states with the same blocks and floors that are nowhere lower, even after restarts.
///   - Sections that no unplaced block connects are solved one by one, and one refuted part refutes the state.
/// A *valley* is a run of sections with equal floors, between sections with higher floors. For each of its sections, either a block starts
/// at this floor (and fits between the walls), or none does, which raises the section's floor to the lowest top that another block in the
/// valley can have. The search branches on the section with the fewest choices, divided by its number of failures.
///
/// Sources: canonical placements and section-wise bounds, Moffitt 2023 (MiniMalloc), doi:10.1145/3623278.3624752; weights from failures,
/// Boussemart et al. 2004 (dom/wdeg); restarts, Luby et al. 1993; the bound from heads, Jackson 1955, and "not first" from one-machine
/// scheduling, Carlier and Pinson 1989.
class FitSearch {
 public:
  struct Block {
    int32_t first, last;  ///< the sections in which the block is alive: `first` to `last` - 1
    int32_t height;       ///< more than 0
  };
  enum class Outcome : uint8_t { fits, impossible, unknown };

  FitSearch(std::span<const Block> blocks, int32_t num_sections, int32_t capacity);

  /// Searches for an answer until the deadline, or until about `max_steps` states were visited. A further call continues the search.
  Outcome run(std::chrono::steady_clock::time_point deadline, int64_t max_steps);

  /// Returns the offsets in the order of the blocks. @pre run() returned fits
  std::span<const int32_t> offsets() const { return offset_; }
  int64_t steps() const { return steps_; }

 private:
  struct Change {
    int32_t* where;
    int32_t before;
  };
  struct Refuted {
    int32_t first;
    std::vector<int32_t> floors;
  };
  struct Choice {
    int32_t section = -1;
    int32_t floor_without = -1;  // new floor if no block starts at the present floor; -1: impossible
    bool refuted = false;        // true: a section has no choice left
  };

  void set(int32_t& where, int32_t value);
  void undo(size_t num_changes);
  void enqueue(int32_t section);
  void raise(int32_t block, int32_t low);
  void raise_floor(int32_t section, int32_t floor);
  bool tighten(int32_t section);
  bool fits_by_heads(int32_t section);
  bool propagate();
  void take_out(int32_t block);
  bool place(int32_t block, int32_t offset);

  bool solve(int32_t first, int32_t last, int depth);
  bool solve_part(int32_t first, int32_t last, int depth);
  Choice choose(int32_t first, int32_t last);
  void scan_valley(int32_t first, int32_t last, double& best_score, Choice& best);
  std::vector<int32_t> candidates(int32_t section);
  uint64_t key_of(int32_t first, int32_t last) const;
  bool is_refuted(uint64_t key, int32_t first, int32_t last) const;
  void remember(uint64_t key, int32_t first, int32_t last);
  bool fail(int32_t section);

  void prepare_restart();
  uint64_t random();
  double noise();

  std::vector<Block> blocks_;
  int32_t num_sections_, capacity_;
  std::vector<std::vector<int32_t>> alive_;           // for each section, its blocks, unplaced ones first
  std::vector<int32_t> num_unplaced_, floor_, rest_;  // for each section; rest_: sum of the unplaced blocks' heights
  std::vector<int32_t> low_, offset_;                 // for each block; low_: lower bound of an unplaced block's offset
  std::vector<size_t> first_position_;                // for each block, its first index in positions_, which has an entry per section
  std::vector<int32_t> positions_;                    // position of a block in a section's list alive_
  std::vector<Change> changes_;
  std::vector<int32_t> queue_;
  std::vector<char> queued_;
  std::vector<std::pair<int32_t, int32_t>> heads_;  // scratch memory of fits_by_heads()
  std::vector<int32_t> ends_before_, starts_from_;  // scratch memory of scan_valley()
  std::vector<double> weight_;                      // for each section, the number of failures
  std::vector<double> priority_;                    // for each block, its priority in this restart
  std::vector<uint64_t> hash_;                      // for each block, a random number, from which sets of blocks are hashed
  std::unordered_map<uint64_t, std::vector<Refuted>> refuted_;
  size_t refuted_bytes_ = 0;
  std::chrono::steady_clock::time_point deadline_;
  int64_t steps_ = 0, step_limit_ = 0, failures_ = 0, failure_limit_ = 0;
  int restarts_ = 0;
  bool stopped_ = false;
  uint64_t random_ = 0x9E3779B97F4A7C15U;  // a fixed seed: searches are reproducible
};

}  // namespace treadle::memory
