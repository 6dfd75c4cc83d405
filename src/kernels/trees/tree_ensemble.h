// Ensembles of decision trees, flattened for traversal.
//
// Every node has both children's indices and leaves point to themselves, so that a step is a load, a comparison and a select, and several
// rows (or several trees, for one row) walk in lock step without a branch per row. The six comparisons are reduced to two, <= and ==, when
// the ensemble is built: a > b is a <= b with the children swapped, a < b is a <= the number below b, and a set membership is a chain of
// ==.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/thread_pool.h"

namespace treadle::kernels {

/// The numbers are those of TreeEnsemble's nodes_modes.
enum class TreeMode : uint8_t { leq = 0, lt = 1, gte = 2, gt = 3, eq = 4, neq = 5, member = 6, leaf = 7 };
enum class TreeAggregate : uint8_t { average = 0, sum = 1, minimum = 2, maximum = 3 };

/// A vote of a leaf.
struct TreeVote {
  int64_t target;
  double weight;
};

/// Trees as a model describes them. Children are indices of `nodes`.
struct TreeDescription {
  struct Node {
    TreeMode mode = TreeMode::leaf;
    bool missing_tracks_true = false;  // a NaN goes to the true child
    int64_t feature = 0;
    double threshold = 0;
    size_t true_child = 0, false_child = 0;
    size_t first = 0, last = 0;  // a leaf's votes, or the members of a set
  };
  std::vector<Node> nodes;
  std::vector<size_t> roots;
  std::vector<TreeVote> votes;
  std::vector<double> members;
  int64_t num_targets = 1;
};

/// @tparam T  in which features, thresholds and sums are kept.
template <typename T>
class TreeEnsemble {
 public:
  /// A branch may have several parents. @throws Error(invalid_model) for cycles, and indices that leave their range.
  explicit TreeEnsemble(const TreeDescription& description);

  int64_t num_trees() const { return static_cast<int64_t>(roots_.size()); }
  int64_t num_targets() const { return num_targets_; }
  size_t size_bytes() const;

  /// Adds up (or averages, …) the votes for each of the rows.
  /// @param rows    [num_rows, num_columns], of X.
  /// @param scores  [num_rows, num_targets]. Targets without a vote get 0.
  template <typename X>
  void run(const X* rows, int64_t num_rows, int64_t num_columns, TreeAggregate aggregate, T* scores, ThreadPool* pool) const;

 private:
  // The walk compares with `threshold` only where the node is not a leaf; a leaf keeps the weight of its only vote there.
  struct Node {
    T threshold;
    uint32_t feature;   // and the flags below
    uint32_t child[2];  // if the comparison holds, if it does not
  };
  static constexpr uint32_t kMissingTracksTrue = 1U << 31, kEquals = 1U << 30, kFeature = kEquals - 1;
  struct Vote {
    uint32_t target;
    T weight;
  };

  uint32_t add_node(const TreeDescription& description, size_t source);
  void build_tree(const TreeDescription& description, size_t root, std::vector<uint32_t>& built);
  void check_ends() const;
  template <bool plain, typename X>
  void run_rows(const X* rows, int64_t num_rows, int64_t num_columns, TreeAggregate aggregate, T* scores) const;
  void vote(uint32_t leaf, TreeAggregate aggregate, T* scores) const;

  std::vector<Node> nodes_;
  std::vector<uint32_t> roots_;
  std::vector<uint32_t> first_vote_;  // of a node, one more than there are nodes
  std::vector<Vote> votes_;
  int64_t num_targets_ = 1, num_features_ = 0;
  bool plain_ = true;        // no node has a flag
  bool single_vote_ = true;  // one target, and one vote in every leaf
};

}  // namespace treadle::kernels
