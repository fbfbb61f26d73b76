/* Widths of x86-64 memory operands, from the instruction's encoding.
 *
 * The emulator may access more, or in other pieces, than the instruction does: vfmadd231ss loads 16 bytes there, not 4.
 * Each opcode map has a table with one letter for each opcode (maps 1 to 3: one for each mandatory prefix), which is the
 * width of the operand. The same tables serve legacy and VEX encodings. EVEX is not decoded: no qemu-user runs it. */
#include "emulator.h"

/* Letters:
 *   .  no memory operand, or not known         b w d q o  1, 2, 4, 8, 16 bytes
 *   v  operand size: 2, 4, 8                   y  4, with W 8              s  operand size of stack operations: 8, 2
 *   x  the whole vector: 16, 32                h k e  a half, a quarter, an eighth of it
 *   D  movddup: 8, 32                          f  far pointer: operand size and 2
 *   m  elements, as the emulator shows them: gathers, masked stores, instructions of two operands in one direction
 *   M  masked load: the emulator loads all lanes
 *   g 7  see group() and x87() */
/* clang-format off */
static const char one_byte[256 + 1] =
    /*         0123456789abcdef */
    /* 00 */ "bvbv....bvbv...."
    /* 10 */ "bvbv....bvbv...."
    /* 20 */ "bvbv....bvbv...."
    /* 30 */ "bvbv....bvbv...."
    /* 40 */ "................"
    /* 50 */ "ssssssssssssssss"
    /* 60 */ "...d....svsv...."
    /* 70 */ "................"
    /* 80 */ "bvbvbvbvbvbvw.wg"
    /* 90 */ "............ss.."
    /* a0 */ "bvbvbvmm..bvbvbv"
    /* b0 */ "................"
    /* c0 */ "bvqq..bvmsmm...m"
    /* d0 */ "bvbv...b77777777"
    /* e0 */ "........q......."
    /* f0 */ "......bv......gg";
/* clang-format on */

/* None, 66, F3, F2. */
/* clang-format off */
static const char map1[256][4 + 1] = {
    [0x00] = "wwww", [0x01] = "gggg", [0x02] = "wwww", [0x03] = "wwww", [0x0f] = "q...",
    [0x10] = "xxdq", [0x11] = "xxdq", [0x12] = "qqxD", [0x13] = "qq..", [0x14] = "xx..", [0x15] = "xx..", [0x16] = "qqx.", [0x17] = "qq..",
    [0x28] = "xx..", [0x29] = "xx..", [0x2a] = "qqyy", [0x2b] = "xxdq", [0x2c] = "qodq", [0x2d] = "qodq", [0x2e] = "dq..", [0x2f] = "dq..",
    [0x40] = "vvvv", [0x41] = "vvvv", [0x42] = "vvvv", [0x43] = "vvvv", [0x44] = "vvvv", [0x45] = "vvvv", [0x46] = "vvvv", [0x47] = "vvvv",
    [0x48] = "vvvv", [0x49] = "vvvv", [0x4a] = "vvvv", [0x4b] = "vvvv", [0x4c] = "vvvv", [0x4d] = "vvvv", [0x4e] = "vvvv", [0x4f] = "vvvv",
    [0x51] = "xxdq", [0x52] = "x.d.", [0x53] = "x.d.", [0x54] = "xx..", [0x55] = "xx..", [0x56] = "xx..", [0x57] = "xx..",
    [0x58] = "xxdq", [0x59] = "xxdq", [0x5a] = "hxdq", [0x5b] = "xxx.", [0x5c] = "xxdq", [0x5d] = "xxdq", [0x5e] = "xxdq", [0x5f] = "xxdq",
    [0x60] = "dx..", [0x61] = "dx..", [0x62] = "dx..", [0x63] = "qx..", [0x64] = "qx..", [0x65] = "qx..", [0x66] = "qx..", [0x67] = "qx..",
    [0x68] = "qx..", [0x69] = "qx..", [0x6a] = "qx..", [0x6b] = "qx..", [0x6c] = ".x..", [0x6d] = ".x..", [0x6e] = "yy..", [0x6f] = "qxx.",
    [0x70] = "qxxx", [0x74] = "qx..", [0x75] = "qx..", [0x76] = "qx..", [0x7c] = ".x.x", [0x7d] = ".x.x", [0x7e] = "yyq.", [0x7f] = "qxx.",
    [0x90] = "bbbb", [0x91] = "bbbb", [0x92] = "bbbb", [0x93] = "bbbb", [0x94] = "bbbb", [0x95] = "bbbb", [0x96] = "bbbb", [0x97] = "bbbb",
    [0x98] = "bbbb", [0x99] = "bbbb", [0x9a] = "bbbb", [0x9b] = "bbbb", [0x9c] = "bbbb", [0x9d] = "bbbb", [0x9e] = "bbbb", [0x9f] = "bbbb",
    [0xa0] = "ssss", [0xa1] = "ssss", [0xa3] = "vvvv", [0xa4] = "vvvv", [0xa5] = "vvvv", [0xa8] = "ssss", [0xa9] = "ssss", [0xab] = "vvvv",
    [0xac] = "vvvv", [0xad] = "vvvv", [0xae] = "gggg", [0xaf] = "vvvv",
    [0xb0] = "bbbb", [0xb1] = "vvvv", [0xb2] = "ffff", [0xb3] = "vvvv", [0xb4] = "ffff", [0xb5] = "ffff", [0xb6] = "bbbb", [0xb7] = "wwww",
    [0xb8] = "..v.", [0xba] = "gggg", [0xbb] = "vvvv", [0xbc] = "vvvv", [0xbd] = "vvvv", [0xbe] = "bbbb", [0xbf] = "wwww",
    [0xc0] = "bbbb", [0xc1] = "vvvv", [0xc2] = "xxdq", [0xc3] = "y...", [0xc4] = "ww..", [0xc6] = "xx..", [0xc7] = "gggg",
    [0xd0] = ".x.x", [0xd1] = "qo..", [0xd2] = "qo..", [0xd3] = "qo..", [0xd4] = "qx..", [0xd5] = "qx..", [0xd6] = ".q..",
    [0xd8] = "qx..", [0xd9] = "qx..", [0xda] = "qx..", [0xdb] = "qx..", [0xdc] = "qx..", [0xdd] = "qx..", [0xde] = "qx..", [0xdf] = "qx..",
    [0xe0] = "qx..", [0xe1] = "qo..", [0xe2] = "qo..", [0xe3] = "qx..", [0xe4] = "qx..", [0xe5] = "qx..", [0xe6] = ".xhx", [0xe7] = "qx..",
    [0xe8] = "qx..", [0xe9] = "qx..", [0xea] = "qx..", [0xeb] = "qx..", [0xec] = "qx..", [0xed] = "qx..", [0xee] = "qx..", [0xef] = "qx..",
    [0xf0] = "...x", [0xf1] = "qo..", [0xf2] = "qo..", [0xf3] = "qo..", [0xf4] = "qx..", [0xf5] = "qx..", [0xf6] = "qx..", [0xf7] = "mm..",
    [0xf8] = "qx..", [0xf9] = "qx..", [0xfa] = "qx..", [0xfb] = "qx..", [0xfc] = "qx..", [0xfd] = "qx..", [0xfe] = "qx..",
};
/* clang-format on */

/* clang-format off */
static const char map2[256][4 + 1] = {
    [0x00] = "qx..", [0x01] = "qx..", [0x02] = "qx..", [0x03] = "qx..", [0x04] = "qx..", [0x05] = "qx..", [0x06] = "qx..", [0x07] = "qx..",
    [0x08] = "qx..", [0x09] = "qx..", [0x0a] = "qx..", [0x0b] = "qx..", [0x0c] = ".x..", [0x0d] = ".x..", [0x0e] = ".x..", [0x0f] = ".x..",
    [0x10] = ".x..", [0x13] = ".h..", [0x14] = ".x..", [0x15] = ".x..", [0x16] = ".x..", [0x17] = ".x..",
    [0x18] = ".d..", [0x19] = ".q..", [0x1a] = ".o..", [0x1c] = "qx..", [0x1d] = "qx..", [0x1e] = "qx..",
    [0x20] = ".h..", [0x21] = ".k..", [0x22] = ".e..", [0x23] = ".h..", [0x24] = ".k..", [0x25] = ".h..",
    [0x28] = ".x..", [0x29] = ".x..", [0x2a] = ".x..", [0x2b] = ".x..", [0x2c] = ".M..", [0x2d] = ".M..", [0x2e] = ".m..", [0x2f] = ".m..",
    [0x30] = ".h..", [0x31] = ".k..", [0x32] = ".e..", [0x33] = ".h..", [0x34] = ".k..", [0x35] = ".h..", [0x36] = ".x..", [0x37] = ".x..",
    [0x38] = ".x..", [0x39] = ".x..", [0x3a] = ".x..", [0x3b] = ".x..", [0x3c] = ".x..", [0x3d] = ".x..", [0x3e] = ".x..", [0x3f] = ".x..",
    [0x40] = ".x..", [0x41] = ".o..", [0x45] = ".x..", [0x46] = ".x..", [0x47] = ".x..", [0x50] = "xxxx", [0x51] = "xxxx", [0x52] = ".x..",
    [0x53] = ".x..", [0x58] = ".d..", [0x59] = ".q..", [0x5a] = ".o..", [0x78] = ".b..", [0x79] = ".w..", [0x8c] = ".M..", [0x8e] = ".m..",
    [0x90] = ".m..", [0x91] = ".m..", [0x92] = ".m..", [0x93] = ".m..", [0x96] = ".x..", [0x97] = ".x..",
    [0x98] = ".x..", [0x99] = ".y..", [0x9a] = ".x..", [0x9b] = ".y..", [0x9c] = ".x..", [0x9d] = ".y..", [0x9e] = ".x..", [0x9f] = ".y..",
    [0xa6] = ".x..", [0xa7] = ".x..",
    [0xa8] = ".x..", [0xa9] = ".y..", [0xaa] = ".x..", [0xab] = ".y..", [0xac] = ".x..", [0xad] = ".y..", [0xae] = ".x..", [0xaf] = ".y..",
    [0xb6] = ".x..", [0xb7] = ".x..",
    [0xb8] = ".x..", [0xb9] = ".y..", [0xba] = ".x..", [0xbb] = ".y..", [0xbc] = ".x..", [0xbd] = ".y..", [0xbe] = ".x..", [0xbf] = ".y..",
    [0xc8] = "o...", [0xc9] = "o...", [0xca] = "o...", [0xcb] = "o...", [0xcc] = "o...", [0xcd] = "o...", [0xcf] = ".x..",
    [0xdb] = ".x..", [0xdc] = ".x..", [0xdd] = ".x..", [0xde] = ".x..", [0xdf] = ".x..", [0xf0] = "vv.b", [0xf1] = "vv.v",
    [0xf2] = "y...", [0xf3] = "y...", [0xf5] = "y.yy", [0xf6] = ".yyy", [0xf7] = "yyyy", [0xf9] = "y...",
};
/* clang-format on */

static const char map3[256][4 + 1] = {
    [0x00] = ".x..", [0x01] = ".x..", [0x02] = ".x..", [0x04] = ".x..", [0x05] = ".x..", [0x06] = ".x..",
    [0x08] = ".x..", [0x09] = ".x..", [0x0a] = ".d..", [0x0b] = ".q..", [0x0c] = ".x..", [0x0d] = ".x..",
    [0x0e] = ".x..", [0x0f] = "qx..", [0x14] = ".b..", [0x15] = ".w..", [0x16] = ".y..", [0x17] = ".d..",
    [0x18] = ".o..", [0x19] = ".o..", [0x1d] = ".h..", [0x20] = ".b..", [0x21] = ".d..", [0x22] = ".y..",
    [0x38] = ".o..", [0x39] = ".o..", [0x40] = ".x..", [0x41] = ".o..", [0x42] = ".x..", [0x44] = ".x..",
    [0x46] = ".x..", [0x4a] = ".x..", [0x4b] = ".x..", [0x4c] = ".x..", [0x60] = ".o..", [0x61] = ".o..",
    [0x62] = ".o..", [0x63] = ".o..", [0xcc] = "o...", [0xce] = ".x..", [0xcf] = ".x..", [0xdf] = ".o..",
    [0xf0] = "...y",
};

struct encoding {
  unsigned map, opcode, prefix; /* 0 to 3; of the mandatory prefix: none, 66, F3, F2 */
  bool w, vector32, small;      /* small: 66, for operand sizes */
  bool vex;
  unsigned modrm;
};

static const struct operand none = {OPERAND_NONE, 0}, unknown = {OPERAND_UNKNOWN, 0};

static struct operand whole(unsigned bytes) { return (struct operand){OPERAND_WHOLE, (uint16_t)bytes}; }

/* Values of 10 bytes are one access, and so is the x87's state. */
static struct operand x87(const struct encoding *e) {
  static const char letters[8][8 + 1] = {"dddddddd", "d.dd", "dddddddd", "dddd",
                                         "qqqqqqqq", "qqqq", "wwwwwwww", "wwww"};
  const unsigned operation = e->modrm >> 3 & 7, which = (e->opcode & 7) << 3 | operation;
  switch (which) {
    case 014:
    case 016: return whole(e->small ? 14 : 28); /* fldenv, fnstenv */
    case 054:
    case 056: return whole(e->small ? 94 : 108); /* frstor, fnsave */
    case 015:
    case 017:
    case 057: return whole(2); /* fldcw, fnstcw, fnstsw */
    case 035:
    case 037:
    case 074:
    case 076: return whole(10);
    case 075:
    case 077: return whole(8); /* fild, fistp */
    default: break;
  }
  switch (letters[e->opcode & 7][operation]) {
    case 'd': return whole(4);
    case 'q': return whole(8);
    case 'w': return whole(2);
    default: return unknown;
  }
}

static unsigned stack_size(const struct encoding *e) { return e->small && !e->w ? 2 : 8; }
static unsigned operand_size(const struct encoding *e) { return e->w ? 8 : e->small ? 2 : 4; }

/* Opcodes whose operand is a matter of the register field. */
static struct operand group(const struct encoding *e) {
  const unsigned operation = e->modrm >> 3 & 7, stack = stack_size(e);
  if (e->map == 0) switch (e->opcode) {
      case 0x8f: return operation == 0 ? whole(stack) : unknown;
      case 0xfe: return operation < 2 ? whole(1) : unknown;
      default: /* 0xff: inc, dec, call, far call, jump, far jump, push */
        if (operation < 2) return whole(operand_size(e));
        if (operation == 2 || operation == 4) return whole(8);
        if (operation == 3) return (struct operand){OPERAND_PARTS, 0};
        if (operation == 5) return whole(operand_size(e) + 2);
        return operation == 6 ? whole(stack) : unknown;
    }
  switch (e->opcode) {
    case 0x01: return operation < 4 ? whole(10) : operation == 4 || operation == 6 ? whole(2) : none;
    case 0xba: return operation >= 4 ? whole(operand_size(e)) : unknown;
    case 0xc7:
      return operation == 1                     ? whole(e->w ? 16 : 8)
             : operation >= 3 && operation <= 5 ? (struct operand){OPERAND_PARTS, 0}
                                                : unknown;
    default:                                                            /* 0xae */
      if (e->prefix == 2 && operation == 4) return whole(e->w ? 8 : 4); /* ptwrite */
      if (e->prefix != 0 && operation >= 6) return none;                /* clwb, clflushopt */
      /* fxsave and fxrstor leave the last 48 of 512 bytes alone. xsave and its kind access what a mask in registers asks for. */
      if (operation < 2) return whole(464);
      return operation < 4 ? whole(4) : operation < 7 ? (struct operand){OPERAND_PARTS, 0} : none;
  }
}

static struct operand operand_of(const struct encoding *e) {
  const char letter = e->map == 0 ? one_byte[e->opcode]
                                  : (e->map == 1   ? map1
                                     : e->map == 2 ? map2
                                                   : map3)[e->opcode][e->prefix];
  const unsigned vector = e->vector32 ? 32 : 16;
  if (e->vex && e->map == 1 && (e->opcode & 0xf0) == 0x90) return unknown; /* kmov */
  switch (letter) {
    case 'b': return whole(1);
    case 'w': return whole(2);
    case 'd': return whole(4);
    case 'q': return whole(8);
    case 'o': return whole(16);
    case 'v': return whole(operand_size(e));
    case 'y': return whole(e->w ? 8 : 4);
    case 's': return whole(stack_size(e));
    case 'x': return whole(vector);
    case 'h': return whole(vector / 2);
    case 'k': return whole(vector / 4);
    case 'e': return whole(vector / 8);
    case 'D': return whole(e->vector32 ? 32 : 8);
    case 'f': return whole(operand_size(e) + 2);
    case 'm': return (struct operand){OPERAND_PARTS, 0};
    case 'M': return (struct operand){OPERAND_ALL_LANES, (uint16_t)vector};
    case 'g': return group(e);
    case '7': return x87(e);
    default: return unknown;
  }
}

/* Opcodes without a ModRM byte, or whose access is not its operand. */
static bool has_modrm(const struct encoding *e) {
  const unsigned opcode = e->opcode;
  if (e->map == 0)
    return !((opcode >= 0x50 && opcode <= 0x5f) || opcode == 0x68 || opcode == 0x6a || opcode == 0x9c ||
             opcode == 0x9d || (opcode >= 0xa0 && opcode <= 0xaf) || opcode == 0xc2 || opcode == 0xc3 ||
             (opcode >= 0xc8 && opcode <= 0xcf) || opcode == 0xd7 || opcode == 0xe8);
  return !(e->map == 1 && (opcode == 0xa0 || opcode == 0xa1 || opcode == 0xa8 || opcode == 0xa9));
}

struct operand ml_x86_operand(const unsigned char *at, size_t size) {
  const unsigned char *const end = at + size;
  struct encoding e = {0};
  for (; at < end; at++) {
    if (*at == 0x66) e.small = true, e.prefix = e.prefix > 1 ? e.prefix : 1;
    else if (*at == 0xf3) e.prefix = 2;
    else if (*at == 0xf2) e.prefix = 3;
    else if (*at != 0x67 && *at != 0xf0 && *at != 0x2e && *at != 0x36 && *at != 0x3e && *at != 0x26 && *at != 0x64 &&
             *at != 0x65)
      break;
  }
  if (at < end && *at >= 0x40 && *at <= 0x4f) e.w = (*at++ & 8) != 0;
  if (end - at < 1) return unknown;
  if (*at == 0xc5 && end - at >= 3) {
    e.vex = true, e.map = 1, e.prefix = at[1] & 3, e.vector32 = (at[1] & 4) != 0;
    at += 2;
  } else if (*at == 0xc4 && end - at >= 4) {
    e.vex = true, e.map = at[1] & 31, e.prefix = at[2] & 3, e.vector32 = (at[2] & 4) != 0, e.w = (at[2] & 128) != 0;
    if (e.map < 1 || e.map > 3) return unknown;
    at += 3;
  } else if (*at == 0x62) {
    return unknown; /* EVEX */
  } else if (*at == 0x0f && end - at >= 2) {
    at++;
    e.map = 1;
    if (*at == 0x38 || *at == 0x3a) {
      e.map = *at == 0x38 ? 2 : 3;
      if (++at == end) return unknown;
    }
  }
  e.opcode = *at++;
  if (!has_modrm(&e)) return operand_of(&e);
  if (at == end) return unknown;
  e.modrm = *at;
  if (e.modrm < 0xc0) return operand_of(&e);
  /* The operand is a register: what is left is the stack. maskmov has its address in rdi. */
  if (e.map == 0 && e.opcode == 0xff && ((e.modrm >> 3 & 7) == 2 || (e.modrm >> 3 & 7) == 6))
    return whole(stack_size(&e));
  if (e.map == 0 && e.opcode == 0x8f) return whole(stack_size(&e));
  if (e.map == 1 && e.opcode == 0xf7) return (struct operand){OPERAND_PARTS, 0};
  return none;
}
