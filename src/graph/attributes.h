// The attributes of a node, in the order in which the model file lists them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "graph/type.h"

namespace treadle {

/// Graph-valued attributes are not included: they are the bodies of a node.
using Attribute = std::variant<int64_t, float, std::string, Datum, Type, std::vector<int64_t>, std::vector<float>, std::vector<std::string>,
                               std::vector<Datum>, std::vector<Type>>;

class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<std::string, Attribute>> items) : items_(items) {}

  const Attribute* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  void set(std::string_view name, Attribute value);
  void erase(std::string_view name);

  /// Getters return the default if the attribute is absent. @throws Error(invalid_model) if it has another type
  int64_t get_int(std::string_view name, int64_t otherwise = 0) const;
  float get_float(std::string_view name, float otherwise = 0) const;
  std::string_view get_string(std::string_view name, std::string_view otherwise = {}) const;
  const std::vector<int64_t>& get_ints(std::string_view name) const;  // returns an empty list if the attribute is absent
  const std::vector<float>& get_floats(std::string_view name) const;
  const std::vector<std::string>& get_strings(std::string_view name) const;
  /// Returns a tensor attribute. @throws Error(invalid_model) if it is absent
  const Tensor& get_tensor(std::string_view name) const;

  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }
  size_t size() const { return items_.size(); }
  bool operator==(const Attributes& other) const;  // tensors are equal if they are the same memory or have equal bytes

 private:
  template <typename T>
  const T* typed(std::string_view name) const;
  std::vector<std::pair<std::string, Attribute>> items_;
};

/// Returns true for equal dtype, shape and data.
bool equal(const Tensor& a, const Tensor& b);
bool equal(const Attribute& a, const Attribute& b);
/// Returns text such as `pads=[1,1,1,1]`.
std::string to_string(const Attribute& attribute);

}  // namespace treadle
