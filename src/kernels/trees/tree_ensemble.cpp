#include "kernels/trees/tree_ensemble.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/values/float_types.h"
#include "treadle/error.h"

namespace treadle::kernels {
namespace {

constexpr int kLanes = 8;  // number of rows (or trees) that are traversed together, so that enough loads are in flight to hide latency
constexpr uint32_t kNone = UINT32_MAX;
constexpr int64_t kRowsPerTask = 64;  // number of rows whose scores stay in L1 while all trees are evaluated for them

template <typename T, typename X>
T to_value(X x) {
  if constexpr (std::is_same_v<X, Float16> || std::is_same_v<X, BFloat16>)
    return static_cast<T>(static_cast<float>(x));
  else
    return static_cast<T>(x);
}

}  // namespace

template <typename T>
TreeEnsemble<T>::TreeEnsemble(const TreeDescription& description) : num_targets_(description.num_targets) {
  if (description.nodes.size() > (1U << 29))
    throw Error(ErrorCode::resource_exhausted, fmt::format("{} tree nodes, the limit is 2^29", description.nodes.size()));
  nodes_.reserve(description.nodes.size());
  roots_.reserve(description.roots.size());
  std::vector<uint32_t> built(description.nodes.size(), kNone);
  for (size_t root : description.roots) build_tree(description, root, built);
  first_vote_.push_back(static_cast<uint32_t>(votes_.size()));
  single_vote_ = single_vote_ && num_targets_ == 1;
}

template <typename T>
uint32_t TreeEnsemble<T>::add_node(const TreeDescription& description, size_t source) {
  using Mode = TreeMode;
  const TreeDescription::Node& from = description.nodes[source];
  if (from.feature < 0 || from.feature > kFeature)
    throw Error(ErrorCode::invalid_model, fmt::format("tree node {} tests feature {}, which is outside [0, 2^30)", source, from.feature));
  auto index = static_cast<uint32_t>(nodes_.size());
  auto threshold = static_cast<T>(from.threshold);
  first_vote_.push_back(static_cast<uint32_t>(votes_.size()));
  if (from.mode == Mode::leaf) {
    for (size_t i = from.first; i < from.last; ++i) {
      const TreeVote& vote = description.votes[i];
      if (vote.target < 0 || vote.target >= num_targets_)
        throw Error(ErrorCode::invalid_model,
                    fmt::format("tree node {} votes for target {}, which is outside [0, {})", source, vote.target, num_targets_));
      votes_.push_back({static_cast<uint32_t>(vote.target), static_cast<T>(vote.weight)});
    }
    if (from.last - from.first != 1)
      single_vote_ = false;
    else
      threshold = static_cast<T>(description.votes[from.first].weight);
    nodes_.push_back({threshold, 0, {index, index}});
    return index;
  }
  num_features_ = std::max(num_features_, from.feature + 1);
  // A comparison with NaN is false, except !=. A branch needs the flag if missing_tracks_true requires another result, or if its children
  // are swapped.
  bool swapped = from.mode == Mode::gt || from.mode == Mode::gte || from.mode == Mode::neq;
  bool nan_is_true = from.missing_tracks_true || (from.mode == Mode::neq);
  uint32_t flags = nan_is_true != swapped ? kMissingTracksTrue : 0;
  if (from.mode == Mode::eq || from.mode == Mode::neq || from.mode == Mode::member) flags |= kEquals;
  if (flags != 0) plain_ = false;
  if (from.mode == Mode::lt || from.mode == Mode::gte) {
    constexpr T infinity = std::numeric_limits<T>::infinity();
    // x < -inf is never true. As no number is below -inf, the threshold becomes NaN: comparisons with NaN are never true either.
    threshold = threshold == -infinity ? std::numeric_limits<T>::quiet_NaN() : std::nextafter(threshold, -infinity);
  }
  nodes_.push_back({threshold, static_cast<uint32_t>(from.feature) | flags, {index, index}});
  return index;
}

template <typename T>
void TreeEnsemble<T>::build_tree(const TreeDescription& description, size_t root, std::vector<uint32_t>& built) {
  struct Pending {
    size_t source;
    uint32_t parent;
    int64_t slot;      // index of this child within its parent
    bool whole_chain;  // true for the true child of a chain of ==: the chain is the nodes [parent, slot)
  };
  bool shares = false;
  std::vector<Pending> pending{{root, kNone, 0, false}};
  // Traverses depth first, true child first: models and training libraries store trees in this order, so memory accesses are local.
  while (!pending.empty()) {
    Pending next = pending.back();
    pending.pop_back();
    if (next.source >= description.nodes.size())
      throw Error(ErrorCode::invalid_model, fmt::format("a tree refers to node {}, there are {}", next.source, description.nodes.size()));
    const TreeDescription::Node& from = description.nodes[next.source];
    // A branch with several parents is built once; leaves may be duplicated.
    const bool again = from.mode != TreeMode::leaf && built[next.source] != kNone;
    const uint32_t index = again ? built[next.source] : add_node(description, next.source);
    built[next.source] = index;
    shares = shares || again;
    if (again && index == next.parent)
      throw Error(ErrorCode::invalid_model, fmt::format("the tree node {} leads back to itself", next.source));
    if (next.parent == kNone) {
      roots_.push_back(index);
    } else if (!next.whole_chain) {
      nodes_[next.parent].child[static_cast<size_t>(next.slot)] = index;
    } else {  // the nodes of a chain are consecutive and share the true child
      for (uint32_t link = next.parent; link < static_cast<uint32_t>(next.slot); ++link) nodes_[link].child[0] = index;
    }
    if (again || from.mode == TreeMode::leaf) continue;
    if (from.mode == TreeMode::member) {
      // Adds the chain's nodes. An empty set compares with NaN. Only the first node has the NaN flag, which leads NaN to the true child.
      size_t count = from.last - from.first;
      nodes_[index].threshold = count == 0 ? std::numeric_limits<T>::quiet_NaN() : static_cast<T>(description.members[from.first]);
      for (size_t i = 1; i < count; ++i) {
        uint32_t link = add_node(description, next.source);
        nodes_[link].threshold = static_cast<T>(description.members[from.first + i]);
        nodes_[link - 1].child[1] = link;
      }
      auto end = static_cast<uint32_t>(nodes_.size());
      pending.push_back({from.false_child, end - 1, 1, false});
      pending.push_back({from.true_child, index, end, true});
      continue;
    }
    bool swapped = from.mode == TreeMode::gt || from.mode == TreeMode::gte || from.mode == TreeMode::neq;
    pending.push_back({from.false_child, index, swapped ? 0 : 1, false});
    pending.push_back({from.true_child, index, swapped ? 1 : 0, false});
  }
  if (shares) check_ends();
}

// Removes nodes without parents one after the other. If any nodes are left, they form cycles, in which a traversal would never end.
template <typename T>
void TreeEnsemble<T>::check_ends() const {
  std::vector<uint32_t> parents(nodes_.size()), free;
  auto for_each_child = [&](uint32_t node, auto&& use) {
    for (uint32_t child : nodes_[node].child)
      if (child != node || nodes_[node].child[0] != nodes_[node].child[1]) use(child);
  };
  const auto count = static_cast<uint32_t>(nodes_.size());
  for (uint32_t node = 0; node < count; ++node) for_each_child(node, [&](uint32_t child) { ++parents[child]; });
  for (uint32_t node = 0; node < count; ++node)
    if (parents[node] == 0) free.push_back(node);
  size_t taken = 0;
  for (; taken < free.size(); ++taken)
    for_each_child(free[taken], [&](uint32_t child) {
      if (--parents[child] == 0) free.push_back(child);
    });
  if (taken != nodes_.size()) throw Error(ErrorCode::invalid_model, "some nodes of a tree lead back to themselves");
}

template <typename T>
size_t TreeEnsemble<T>::size_bytes() const {
  return nodes_.size() * sizeof(Node) + (roots_.size() + first_vote_.size()) * sizeof(uint32_t) + votes_.size() * sizeof(Vote);
}

template <typename T>
typename TreeEnsemble<T>::Arrays TreeEnsemble<T>::arrays() const {
  Arrays made{{}, {}, roots_, first_vote_, {}, {}};
  for (const Node& node : nodes_) {
    made.thresholds.push_back(node.threshold);
    made.links.insert(made.links.end(), {node.feature, node.child[0], node.child[1]});
  }
  for (const Vote& vote : votes_) made.targets.push_back(vote.target), made.weights.push_back(vote.weight);
  return made;
}

template <typename T>
void TreeEnsemble<T>::check_columns(int64_t num_columns) const {
  if (num_columns < std::max<int64_t>(num_features_, 1))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the input has {} columns, the trees test feature {}", num_columns, num_features_ - 1));
}

template <typename T>
void TreeEnsemble<T>::vote(uint32_t leaf, TreeAggregate aggregate, T* scores) const {
  for (uint32_t i = first_vote_[leaf]; i < first_vote_[leaf + 1]; ++i) {
    T& score = scores[votes_[i].target];
    T weight = votes_[i].weight;
    // For minimum and maximum, the score of a target without a vote is NaN, for which the comparison is false.
    if (aggregate == TreeAggregate::minimum)
      score = score <= weight ? score : weight;
    else if (aggregate == TreeAggregate::maximum)
      score = score >= weight ? score : weight;
    else
      score += weight;
  }
}

template <typename T>
template <bool plain, typename X>
void TreeEnsemble<T>::run_rows(const X* rows, int64_t num_rows, int64_t num_columns, TreeAggregate aggregate, T* scores) const {
  const Node* nodes = nodes_.data();
  bool extremum = aggregate == TreeAggregate::minimum || aggregate == TreeAggregate::maximum;
  std::fill_n(scores, num_rows * num_targets_, extremum ? std::numeric_limits<T>::quiet_NaN() : T{0});
  auto step = [&](uint32_t at, const X* row) {
    const Node& node = nodes[at];
    if constexpr (plain) {
      return node.child[to_value<T>(row[node.feature]) <= node.threshold ? 0 : 1];
    } else {
      T x = to_value<T>(row[node.feature & kFeature]);
      bool holds = (node.feature & kEquals) ? x == node.threshold : x <= node.threshold;
      holds |= (node.feature & kMissingTracksTrue) && x != x;
      return node.child[holds ? 0 : 1];
    }
  };
  auto add = [&](uint32_t leaf, T* row_scores) {
    if (single_vote_ && !extremum)
      row_scores[0] += nodes[leaf].threshold;
    else
      vote(leaf, aggregate, row_scores);
  };
  auto num_trees = static_cast<int64_t>(roots_.size());
  uint32_t at[kLanes];
  auto walk = [&](auto row_of_lane, int64_t lanes) {
    if (lanes == kLanes) {
      uint32_t moved;
      do {
        moved = 0;
        for (int lane = 0; lane < kLanes; ++lane) {
          uint32_t next = step(at[lane], row_of_lane(lane));
          moved |= next ^ at[lane];
          at[lane] = next;
        }
      } while (moved);
      return;
    }
    for (int lane = 0; lane < lanes; ++lane) {
      for (uint32_t next; (next = step(at[lane], row_of_lane(lane))) != at[lane];) at[lane] = next;
    }
  };
  if (num_rows < kLanes) {  // follows several trees at once for each row
    for (int64_t r = 0; r < num_rows; ++r) {
      const X* row = rows + r * num_columns;
      for (int64_t tree = 0; tree < num_trees; tree += kLanes) {
        int64_t lanes = std::min<int64_t>(kLanes, num_trees - tree);
        for (int64_t lane = 0; lane < lanes; ++lane) at[lane] = roots_[static_cast<size_t>(tree + lane)];
        walk([&](int) { return row; }, lanes);
        for (int64_t lane = 0; lane < lanes; ++lane) add(at[lane], scores + r * num_targets_);
      }
    }
  } else {
    for (uint32_t root : roots_) {
      for (int64_t r = 0; r < num_rows; r += kLanes) {
        int64_t lanes = std::min<int64_t>(kLanes, num_rows - r);
        const X* first = rows + r * num_columns;
        std::fill_n(at, lanes, root);
        walk([&](int lane) { return first + lane * num_columns; }, lanes);
        for (int64_t lane = 0; lane < lanes; ++lane) add(at[lane], scores + (r + lane) * num_targets_);
      }
    }
  }
  int64_t count = num_rows * num_targets_;
  if (aggregate == TreeAggregate::average) {
    for (int64_t i = 0; i < count; ++i) scores[i] /= static_cast<T>(num_trees);
  } else if (extremum) {
    for (int64_t i = 0; i < count; ++i)
      if (scores[i] != scores[i]) scores[i] = 0;
  }
}

template <typename T>
template <typename X>
void TreeEnsemble<T>::run(const X* rows, int64_t num_rows, int64_t num_columns, TreeAggregate aggregate, T* scores,
                          ThreadPool* pool) const {
  if (num_rows > 0) check_columns(num_columns);
  parallel_for(pool, num_rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r += kRowsPerTask) {
      int64_t count = std::min(kRowsPerTask, end - r);
      if (plain_)
        run_rows<true>(rows + r * num_columns, count, num_columns, aggregate, scores + r * num_targets_);
      else
        run_rows<false>(rows + r * num_columns, count, num_columns, aggregate, scores + r * num_targets_);
    }
  });
}

template class TreeEnsemble<float>;
template class TreeEnsemble<double>;
#define TREADLE_TREE_RUN(T, X) template void TreeEnsemble<T>::run<X>(const X*, int64_t, int64_t, TreeAggregate, T*, ThreadPool*) const;
TREADLE_TREE_RUN(float, float)
TREADLE_TREE_RUN(float, int32_t)
TREADLE_TREE_RUN(float, int64_t)
TREADLE_TREE_RUN(float, Float16)
TREADLE_TREE_RUN(double, float)
TREADLE_TREE_RUN(double, double)
TREADLE_TREE_RUN(double, int32_t)
TREADLE_TREE_RUN(double, int64_t)
#undef TREADLE_TREE_RUN

}  // namespace treadle::kernels
