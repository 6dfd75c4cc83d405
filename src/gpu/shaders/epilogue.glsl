// Pointwise operators that are applied to a product or convolution before its result is stored. At run time, the code of epilogue() is
// replaced by that of the node's chain (gpu/epilogue_writer.h). a, b and c are elements of up to three operands.
layout(constant_id = 0) const uint OPERAND_A = 0;
layout(constant_id = 1) const uint OPERAND_B = 0;
layout(constant_id = 2) const uint OPERAND_C = 0;

float epilogue(float y, float a, float b, float c) { return y; }

// Returns an element of an operand. `lies` says how the operand is broadcast: 0: it is absent, 1: it is a single number, 2: it has the
// result's shape, 3: it has an element per channel, 4: it has an element per row of the result.
float operand_element(uint lies, Elements values, uint element, uint channel, uint row) {
  if (lies == 0) return 0;
  return to_number(values.at[lies == 1 ? 0 : lies == 2 ? element : lies == 3 ? channel : row]);
}

// Returns the result of the chain. First, y is rounded as the product would store it without the chain.
float finished(float y, Elements operands[3], uint element, uint channel, uint row) {
  const float a = operand_element(OPERAND_A, operands[0], element, channel, row);
  const float b = operand_element(OPERAND_B, operands[1], element, channel, row);
  const float c = operand_element(OPERAND_C, operands[2], element, channel, row);
  return epilogue(to_number(to_element(y)), a, b, c);
}
