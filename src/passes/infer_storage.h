// Storage types: which values of a graph are sparse, given which inputs are.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "graph/graph.h"

namespace treadle::passes {

/// How a value's elements are kept.
enum class StorageType : uint8_t { dense, coo, csr, row_sparse };
/// "default" (MXNet's name) or "dense", "coo", "csr", "row_sparse". @throws Error(invalid_argument)
StorageType storage_type(const std::string& name);
std::string_view name_of(StorageType storage);
/// "x=csr;table=row_sparse": storage types by the names of inputs. @throws Error(invalid_argument)
std::map<std::string, std::string> parse_storage(const std::string& text);

/// Makes inputs sparse and follows them through the graph: a product with a matrix in CSR, rows of a row-sparse table, and functions of one
/// operand with f(0) = 0 stay with what is stored; for all others the value is made dense, once, by a node of its own.
/// @param graph     inferred; the inputs named are tensors
/// @param fallback  is told, for every value that is made dense, which node wanted it: "x (csr) is made dense for Softmax node "s"".
/// @return the storage of every value that is not dense.
/// @throws Error(invalid_argument) for an input whose shape cannot be of its storage type; Error(not_found) for a name that is neither an
/// input nor an initializer.
std::map<ValueId, StorageType> infer_storage(Graph& graph, const std::map<std::string, std::string>& inputs,
                                             const std::function<void(const std::string&)>& fallback);

}  // namespace treadle::passes
