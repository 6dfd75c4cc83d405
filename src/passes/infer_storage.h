// Infers which values of a graph are sparse, if some inputs are sparse.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "graph/graph.h"

namespace treadle::passes {

/// The storage format of a value's elements.
enum class StorageType : uint8_t { dense, coo, csr, row_sparse };
/// Parses "default" (MXNet's name) or "dense", "coo", "csr", "row_sparse". @throws Error(invalid_argument)
StorageType storage_type(const std::string& name);
std::string_view name_of(StorageType storage);
/// Parses storage types by names of inputs: "x=csr;table=row_sparse". @throws Error(invalid_argument)
std::map<std::string, std::string> parse_storage(const std::string& text);

/// Makes the named inputs sparse and infers which other values then are sparse. Products with a CSR matrix, look-ups of rows in a
/// row-sparse table, and functions of one operand with f(0) = 0 compute on stored elements only. For other readers of a sparse value, one
/// added node makes it dense.
/// @param graph     after type inference; the named inputs must be tensors
/// @param fallback  called for each value that is made dense, with the reason: "x (csr) is made dense for Softmax node "s""
/// @return the storage of each value that is not dense
/// @throws Error(invalid_argument) if an input's shape does not fit its storage type; Error(not_found) for a name that is neither an input
/// nor an initializer
std::map<ValueId, StorageType> infer_storage(Graph& graph, const std::map<std::string, std::string>& inputs,
                                             const std::function<void(const std::string&)>& fallback);

}  // namespace treadle::passes
