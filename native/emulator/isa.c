/* What the plugin must know of an instruction from its bytes: calls and returns, atomics, and accesses that the
 * emulator makes behind the plugin interface's back. */
#include "emulator.h"

#include <elf.h>
#include <string.h>

/* Masked moves and gathers: an element whose mask bit is clear is not accessed. */
static bool x86_is_masked(const unsigned char *at, const unsigned char *end) {
  unsigned map, operation;
  if (*at == 0x0f && at + 1 < end) map = 1, operation = at[1];
  else if (*at == 0xc5 && at + 2 < end) map = 1, operation = at[2];
  else if (*at == 0xc4 && at + 3 < end) map = at[1] & 31, operation = at[3];
  else return false;
  if (map == 1) return operation == 0xf7; /* maskmovq, maskmovdqu */
  return map == 2 && ((operation >= 0x2c && operation <= 0x2f) || operation == 0x8c || operation == 0x8e ||
                      (operation >= 0x90 && operation <= 0x93));
}

static struct insn_facts x86(const unsigned char *at, size_t size) {
  struct insn_facts facts = {0};
  const unsigned char *const first = at, *end = at + size;
  bool repeated = false;
  while (at < end &&
         (*at == 0x66 || *at == 0x67 || (*at >= 0x40 && *at <= 0x4f) || *at == 0xf0 || *at == 0xf2 || *at == 0xf3 ||
          *at == 0x2e || *at == 0x36 || *at == 0x3e || *at == 0x26 || *at == 0x64 || *at == 0x65))
    facts.atomic |= *at == 0xf0, repeated |= *at == 0xf2 || *at == 0xf3, at++;
  if (at == end) return facts;
  facts.operand = ml_x86_operand(first, size);
  facts.string = repeated && (*at == 0xa4 || *at == 0xa5 || (*at >= 0xaa && *at <= 0xad));
  facts.separate = *at == 0xa6 || *at == 0xa7 || (repeated && (*at == 0xae || *at == 0xaf));
  if (facts.string || facts.separate) facts.operand = (struct operand){OPERAND_PARTS, 0};
  const unsigned modrm = at + 1 < end ? at[1] : 0;
  switch (*at) {
    case 0xe8: facts.role = ROLE_CALL; break;
    case 0xc2:
    case 0xc3:
    case 0xca:
    case 0xcb:
      facts.role = ROLE_RETURN;
      facts.jump = *at <= 0xc3 ? 1 : 0;
      break;
    case 0xff: {
      const unsigned operation = modrm >> 3 & 7;
      if (operation == 2 || operation == 3) facts.role = ROLE_CALL;
      if (operation == 4 || operation == 5) facts.role = ROLE_JUMP;
      if (operation == 2) facts.jump = modrm < 0xc0 ? 3 : 2;
      if (operation == 4 && modrm < 0xc0) facts.jump = 1;
      break;
    }
    case 0x86:
    case 0x87: facts.atomic |= modrm < 0xc0; break; /* xchg with memory locks */
    case 0xd9:
    case 0xdb:
    case 0xdd:
    case 0xdf: { /* values of 10 bytes and the x87's state, likewise */
      const unsigned operation = modrm >> 3 & 7;
      if (modrm < 0xc0 &&
          ((*at == 0xdb && (operation == 5 || operation == 7)) || (*at == 0xd9 && (operation == 4 || operation == 6)) ||
           (*at == 0xdd && (operation == 4 || operation == 6)) ||
           (*at == 0xdf && (operation == 4 || operation == 6)))) {
        facts.role = ROLE_UNSEEN;
        facts.unseen = "x87";
      }
      break;
    }
    case 0x0f: /* fxsave and its kind go to host memory directly from qemu 9.1 on */
      if (modrm == 0xae && at + 2 < end && at[2] < 0xc0) {
        const unsigned operation = at[2] >> 3 & 7;
        if (operation == 0 || operation == 1 || operation == 4 || operation == 5 || operation == 6) {
          facts.role = ROLE_UNSEEN;
          facts.unseen = "fxsave/xsave";
        }
      }
      break;
    default: break;
  }
  facts.modifies = facts.atomic;
  facts.varies = x86_is_masked(at, end);
  return facts;
}

static struct insn_facts aarch64(uint32_t w) {
  struct insn_facts facts = {0};
  if ((w & 0xfc000000) == 0x94000000 || (w & 0xfefff000) == 0xd63f0000) facts.role = ROLE_CALL;
  else if ((w & 0xfffff000) == 0xd65f0000) facts.role = ROLE_RETURN;
  else if ((w & 0xfefff000) == 0xd61f0000) facts.role = ROLE_JUMP;
  else if ((w & 0xffffffe0) == 0xd50b7420) facts = (struct insn_facts){.role = ROLE_UNSEEN, .unseen = "dc zva"};
  else if ((w & 0xffffffe0) == 0xd50b7480) facts = (struct insn_facts){.role = ROLE_UNSEEN, .unseen = "dc gzva"};
  else if ((w & 0x9e000000) == 0x84000000)
    facts = (struct insn_facts){.role = ROLE_UNSEEN, .unseen = "SVE load or store"};
  else if ((w & 0x3f200c00) == 0x19000400 || (w & 0x3f200c00) == 0x1d000400)
    facts = (struct insn_facts){.role = ROLE_UNSEEN, .unseen = "cpy/set"};
  const bool pair = (w & 0xbfa07c00) == 0x08207c00; /* casp */
  facts.modifies = pair || (w & 0x3fa07c00) == 0x08a07c00 ||
                   ((w & 0x3f200c00) == 0x38200000 && (w & 0x3ffffc00) != 0x38bfc000); /* cas, ld<op>, swp; not ldapr */
  facts.conditional = (w & 0x3fc00000) == 0x08000000 && !pair;
  facts.atomic = facts.modifies || (w & 0x3f000000) == 0x08000000;
  return facts;
}

static struct insn_facts riscv64(const unsigned char *at, size_t size) {
  struct insn_facts facts = {0};
  if (size == 2) {
    const unsigned w = at[0] | (unsigned)at[1] << 8, rs1 = w >> 7 & 31, rs2 = w >> 2 & 31;
    if ((w & 3) == 2 && rs2 == 0 && rs1 != 0) {
      if (w >> 12 == 9) facts.role = ROLE_CALL;
      else if (w >> 12 == 8) facts.role = rs1 == 1 || rs1 == 5 ? ROLE_RETURN : ROLE_JUMP;
    }
    return facts;
  }
  uint32_t w;
  memcpy(&w, at, 4);
  const unsigned rd = w >> 7 & 31, rs1 = w >> 15 & 31, operation = w & 127, width = w >> 12 & 7;
  const bool link = rd == 1 || rd == 5;
  if ((operation == 0x6f || operation == 0x67) && link) facts.role = ROLE_CALL;
  else if (operation == 0x67 && rd == 0) facts.role = rs1 == 1 || rs1 == 5 ? ROLE_RETURN : ROLE_JUMP;
  else if ((w & 0xfff07fff) == 0x0040200f) facts = (struct insn_facts){.role = ROLE_UNSEEN, .unseen = "cbo.zero"};
  else if ((operation == 0x07 || operation == 0x27) && (width == 0 || width >= 5)) {
    if (ml_plugin.api >= 2) facts = (struct insn_facts){.role = ROLE_UNSEEN, .unseen = "vector load or store"};
    facts.varies = true;
  }
  facts.atomic = operation == 0x2f;
  facts.conditional = facts.atomic && w >> 27 == 3;
  facts.modifies = facts.atomic && w >> 27 != 2 && w >> 27 != 3;
  return facts;
}

static struct insn_facts ppc64(uint32_t w) {
  struct insn_facts facts = {0};
  const unsigned primary = w >> 26, extended = w >> 1 & 1023;
  const bool link = (w & 1) != 0;
  if (primary == 18 && link) facts.role = ROLE_CALL;
  else if (primary == 16 && link && (w & 0xfffc) != 4) facts.role = ROLE_CALL; /* bcl 20,31,.+4 only reads the pc */
  else if (primary == 19 && (extended == 16 || extended == 528))
    facts.role = link ? ROLE_CALL : extended == 16 ? ROLE_RETURN : ROLE_JUMP;
  else if (primary == 31 && extended == 1014) facts = (struct insn_facts){.role = ROLE_UNSEEN, .unseen = "dcbz"};
  facts.atomic = primary == 31 && (extended == 20 || extended == 84 || extended == 52 || extended == 116 ||
                                   extended == 150 || extended == 214 || extended == 276 || extended == 182);
  facts.conditional = primary == 31 && link &&
                      (extended == 150 || extended == 214 || extended == 694 || extended == 726 || extended == 182);
  facts.varies = primary == 31 && (extended == 269 || extended == 301 || extended == 397 || extended == 429 ||
                                   extended == 533 || extended == 661); /* lxvl, stxvl and their kind; lswx, stswx */
  facts.leaves = primary == 56 || (primary == 62 && (w & 3) == 2);      /* lq, stq */
  return facts;
}

struct insn_facts ml_decode(const unsigned char *bytes, size_t size) {
  uint32_t word = 0;
  if (size >= 4) memcpy(&word, bytes, 4);
  switch (ml_settings.machine) {
    case EM_X86_64: return x86(bytes, size);
    case EM_AARCH64: return aarch64(word);
    case EM_RISCV: return riscv64(bytes, size);
    case EM_PPC64: return ppc64(word);
    default: return (struct insn_facts){0};
  }
}
