// Ensembles of decision trees, flattened for traversal.
//
// Nodes store the indices of both children, and leaves point to themselves. A traversal step is therefore a load, a comparison and a
// select, so that several rows (or several trees for one row) advance in lockstep without branches. Six comparisons are reduced to <= and
// == at construction: a > b is a <= b with swapped children, a < b is a <= the number below b, and set membership is a chain of ==.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/threads/thread_pool.h"

namespace treadle::kernels {

/// The comparisons, numbered as in TreeEnsemble's nodes_modes.
enum class TreeMode : uint8_t { leq = 0, lt = 1, gte = 2, gt = 3, eq = 4, neq = 5, member = 6, leaf = 7 };
enum class TreeAggregate : uint8_t { average = 0, sum = 1, minimum = 2, maximum = 3 };

/// A leaf's vote: it adds `weight` to the score of `target`.
struct TreeVote {
  int64_t target;
  double weight;
};

/// The trees as a model describes them. Children are indices into `nodes`.
struct TreeDescription {
  struct Node {
    TreeMode mode = TreeMode::leaf;
    bool missing_tracks_true = false;  // true: NaN goes to the true child
    int64_t feature = 0;
    double threshold = 0;
    size_t true_child = 0, false_child = 0;
    size_t first = 0, last = 0;  // range in `votes` for a leaf, or in `members` for a set
  };
  std::vector<Node> nodes;
  std::vector<size_t> roots;
  std::vector<TreeVote> votes;
  std::vector<double> members;
  int64_t num_targets = 1;
};

/// @tparam T  type of features, thresholds and sums
template <typename T>
class TreeEnsemble {
 public:
  /// Makes an ensemble. Branches may have several parents. @throws Error(invalid_model) for cycles and for indices out of range
  explicit TreeEnsemble(const TreeDescription& description);

  int64_t num_trees() const { return static_cast<int64_t>(roots_.size()); }
  int64_t num_targets() const { return num_targets_; }
  size_t size_bytes() const;

  /// The nodes' fields, roots and votes as separate arrays, for devices.
  struct Arrays {
    std::vector<T> thresholds;
    std::vector<uint32_t> links;  ///< for each node: its feature, with the flags below, and both children; leaves are their own children
    std::vector<uint32_t> roots;
    std::vector<uint32_t> first_vote;  ///< for each node: its first vote; one more element for the end
    std::vector<uint32_t> targets;     ///< target of each vote
    std::vector<T> weights;            ///< weight of each vote
  };
  Arrays arrays() const;
  static constexpr uint32_t kMissingTracksTrue = 1U << 31, kEquals = 1U << 30, kFeature = kEquals - 1;

  /// Checks the number of columns of the input. @throws Error(invalid_argument) if the trees test a feature whose index is not less than
  /// `num_columns`
  void check_columns(int64_t num_columns) const;

  /// Aggregates (adds up, averages etc.) the votes for each row.
  /// @param rows    [num_rows, num_columns]
  /// @param scores  [num_rows, num_targets]; targets without a vote get 0
  template <typename X>
  void run(const X* rows, int64_t num_rows, int64_t num_columns, TreeAggregate aggregate, T* scores, ThreadPool* pool) const;

 private:
  // A node for traversal. It contains the threshold of a branch; for a leaf with a single vote, it contains the vote's weight instead.
  struct Node {
    T threshold;
    uint32_t feature;   // index of the feature, with the flags below
    uint32_t child[2];  // next node if the comparison is true; next node if it is false
  };
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
  std::vector<uint32_t> first_vote_;  // first vote of each node, plus one element for the end
  std::vector<Vote> votes_;
  int64_t num_targets_ = 1, num_features_ = 0;
  bool plain_ = true;        // true: no node has a flag, so no step checks for NaN or ==
  bool single_vote_ = true;  // true: there is one target, and one vote per leaf
};

}  // namespace treadle::kernels
