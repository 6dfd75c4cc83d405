// Transpose(view(Transpose(x))) -> Reshape(Transpose(Reshape(x))): images cut into patches and reassembled are moved only once. Divides the
// axes of x into pieces that no shape in the chain divides further, so the chain is one permutation of pieces. Needs known extents.
#include <algorithm>
#include <numeric>

#include "graph/rewriter.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

using Extents = std::vector<int64_t>;
constexpr size_t kMaxRank = 8;

/// Returns the extents as integers; nullopt if an extent is unknown or 0.
std::optional<Extents> extents_of(const Type& type) {
  if (!type.is_tensor() || !type.has_rank()) return std::nullopt;
  Extents extents;
  for (const Dim& dim : *type.shape) {
    if (!dim.is_const() || dim.value() < 1) return std::nullopt;
    extents.push_back(dim.value());
  }
  return extents;
}

/// The axes of an array, divided into numbered pieces.
class Pieces {
 public:
  explicit Pieces(const Extents& x) : extents_(x), before_(x.size()), axes_(x.size()) {
    std::iota(before_.begin(), before_.end(), size_t{0});
    for (size_t i = 0; i < x.size(); ++i) axes_[i] = {i};
  }
  bool transpose(const std::vector<int64_t>& perm) {
    if (perm.size() != axes_.size()) return false;
    std::vector<std::vector<size_t>> moved;
    for (int64_t axis : perm) moved.push_back(axes_[static_cast<size_t>(axis)]);
    axes_ = std::move(moved);
    return true;
  }
  /// Divides the axes so that they have the shape `to`. Returns false if a border between two new axes would fall within a piece at a place
  /// where it cannot be cut.
  bool reshape(const Extents& to) {
    std::vector<size_t> rest = now();
    std::reverse(rest.begin(), rest.end());  // reversed, so that pop_back() takes the next piece
    axes_.assign(to.size(), {});
    for (size_t i = 0; i < to.size(); ++i) {
      for (int64_t open = to[i]; open > 1;) {
        if (rest.empty()) return false;
        const size_t piece = rest.back();
        rest.pop_back();
        if (extents_[piece] > open) {
          if (extents_[piece] % open != 0) return false;
          rest.push_back(cut(piece, open));
        }
        if (open % extents_[piece] != 0) return false;
        open /= extents_[piece];
        axes_[i].push_back(piece);
      }
    }
    return std::all_of(rest.begin(), rest.end(), [&](size_t piece) { return extents_[piece] == 1; });
  }

  /// Describes the whole chain as one step: view x with the shape `extents`, then transpose it by `perm`. Pieces that are adjacent before
  /// and after form one axis.
  struct Movement {
    Extents extents, perm;
  };
  Movement movement() const {
    std::vector<size_t> place(extents_.size());
    for (size_t i = 0; i < before_.size(); ++i) place[before_[i]] = i;
    // Pieces of extent 1 are ignored, because they may be anywhere.
    std::vector<size_t> moved;
    for (size_t piece : now())
      if (extents_[piece] > 1) moved.push_back(place[piece]);
    std::vector<std::pair<size_t, int64_t>> runs;  // (first position, number of elements) of adjacent pieces, in new order
    for (size_t i = 0; i < moved.size(); ++i) {
      const int64_t extent = extents_[before_[moved[i]]];
      if (i > 0 && follows(moved[i - 1], moved[i]))
        runs.back().second *= extent;
      else
        runs.emplace_back(moved[i], extent);
    }
    Movement m;
    std::vector<size_t> order(runs.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return runs[a].first < runs[b].first; });
    m.perm.resize(runs.size());
    for (size_t i = 0; i < order.size(); ++i) {
      m.extents.push_back(runs[order[i]].second);
      m.perm[order[i]] = static_cast<int64_t>(i);
    }
    return m;
  }

 private:
  std::vector<size_t> now() const {
    std::vector<size_t> all;
    for (const auto& axis : axes_) all.insert(all.end(), axis.begin(), axis.end());
    return all;
  }
  /// Cuts a piece in two. The piece keeps the outer part, of extent `outer`. Returns the new piece, which is the inner part.
  size_t cut(size_t piece, int64_t outer) {
    const size_t inner = extents_.size();
    extents_.push_back(extents_[piece] / outer);
    extents_[piece] = outer;
    before_.insert(std::find(before_.begin(), before_.end(), piece) + 1, inner);
    return inner;
  }
  /// Returns true if all pieces between these two positions of x have extent 1.
  bool follows(size_t first, size_t second) const {
    if (second <= first) return false;
    return std::all_of(before_.begin() + static_cast<std::ptrdiff_t>(first) + 1, before_.begin() + static_cast<std::ptrdiff_t>(second),
                       [&](size_t piece) { return extents_[piece] == 1; });
  }

  Extents extents_;             // extent of each piece
  std::vector<size_t> before_;  // the pieces, in the order of x
  std::vector<std::vector<size_t>> axes_;
};

ValueId reshaped(Rewriter& rewriter, ValueId value, const Extents& to, const Node& like) {
  Graph& graph = rewriter.graph();
  if (extents_of(graph.type(value)) == to) return value;
  const ValueId shape = graph.add_constant(like.name + "/shape", Tensor::vector<int64_t>(to));
  return rewriter.add({.op_type = "Reshape", .inputs = {value, shape}, .name = like.name}, like.id);
}

bool merge(Rewriter& rewriter, NodeId last) {
  Graph& graph = rewriter.graph();
  const Node& outer = graph.node(last);
  // Collects the nodes of the chain, from the last to the first.
  std::vector<NodeId> chain{last};
  const Node* inner = producer_of(graph, outer.inputs[0]);
  while (inner && is_used_once(graph, inner->outputs[0])) {
    chain.push_back(inner->id);
    if (inner->is("Transpose")) break;
    if (!is_view(*inner)) return false;
    inner = producer_of(graph, inner->inputs[0]);
  }
  if (!inner || chain.size() < 3 || !inner->is("Transpose") || chain.back() != inner->id) return false;
  const ValueId x = inner->inputs[0];
  const auto from = extents_of(graph.type(x)), between = extents_of(graph.type(outer.inputs[0])),
             to = extents_of(graph.type(outer.outputs[0]));
  const std::vector<int64_t>&first = inner->attributes.get_ints("perm"), &second = outer.attributes.get_ints("perm");
  if (!from || !between || !to) return declined(outer, "extents on the way from", inner, " before it are known only in the run");
  Pieces pieces(*from);
  if (!pieces.transpose(first) || !pieces.reshape(*between) || !pieces.transpose(second))
    return declined(outer, "the views between", inner, " and it cut through axes that were moved");
  const Pieces::Movement m = pieces.movement();
  if (m.extents.size() > kMaxRank) return declined(outer, "with", inner, " before it, it moves more than 8 axes");
  return rewriter.change(chain, [&] {
    ValueId moved = reshaped(rewriter, x, m.extents, outer);
    if (!std::is_sorted(m.perm.begin(), m.perm.end())) {
      NodeSpec spec{.op_type = "Transpose", .inputs = {moved}, .name = outer.name};
      spec.attributes.set("perm", m.perm);
      moved = rewriter.add(std::move(spec), outer.id);
    }
    moved = reshaped(rewriter, moved, *to, outer);
    if (moved == x) return false;  // another rule handles this case
    graph.replace_uses(outer.outputs[0], moved);
    for (NodeId id : chain) graph.remove_node(id);
    return true;
  });
}

}  // namespace

Pass merge_movements() {
  return graph_pass("merge-movements", kExtended, kNotBeforeAutodiff, "Transposes with nothing but views between them -> one Transpose",
                    [](Graph& graph, PassContext&, int64_t limit) {
                      return Rewriter(graph, limit).for_each_graph([](Rewriter& inside) {
                        for (NodeId id : inside.graph().order())
                          if (inside.graph().is_alive(id) && inside.graph().node(id).is("Transpose")) merge(inside, id);
                      });
                    });
}

}  // namespace treadle::passes
