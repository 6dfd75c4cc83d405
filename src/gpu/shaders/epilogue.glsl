// Computations on the results of products and convolutions before these are stored. The code of epilogue() is replaced at run time
// (gpu/epilogue_writer.h) by that of the node's chain; a, b and c are elements of up to three operands.
layout(constant_id = 0) const uint OPERAND_A = 0;
layout(constant_id = 1) const uint OPERAND_B = 0;
layout(constant_id = 2) const uint OPERAND_C = 0;

float epilogue(float y, float a, float b, float c) { return y; }

// Returns an element of an operand. `lies` says how the operand is broadcast: 0: absent, 1: a single number, 2: like the result, 3: an
// element per channel, 4: an element per row of the result.
float operand_element(uint lies, Elements values, uint element, uint channel, uint row) {
  if (lies == 0) return 0;
  return to_number(values.at[lies == 1 ? 0 : lies == 2 ? element : lies == 3 ? channel : row]);
}

// Returns the chain's result. y is first rounded, as the product alone would store it.
float finished(float y, Elements operands[3], uint element, uint channel, uint row) {
  const float a = operand_element(OPERAND_A, operands[0], element, channel, row);
  const float b = operand_element(OPERAND_B, operands[1], element, channel, row);
  const float c = operand_element(OPERAND_C, operands[2], element, channel, row);
  return epilogue(to_number(to_element(y)), a, b, c);
}
