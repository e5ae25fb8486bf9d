/* Text of values for spmd.print: Python's format(), appended at *at and cut off at end.
 *
 * spec is what stands after the colon of a replacement field: [[fill]align][sign][#][0][width][,]
 * [.precision][type], ASCII. A spec that does not suit the value is treated like the empty one.
 */
#ifndef SPMD_PRINT_H
#define SPMD_PRINT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spmd_half.h"

#define SPMD_PRINT_ROOM 640 /* the longest number: 1e308 with 120 decimals, digits grouped */
#define SPMD_PRINT_WIDTH 4096
#define SPMD_PRINT_PRECISION 120

typedef struct spmd_spec {
    char fill, align, sign, group, type; /* 0 where not given */
    int alternate, width, precision;     /* precision -1: not given */
} spmd_spec;

static inline int spmd_spec_number(const char **s, int most)
{
    int n = 0;
    for (; **s >= '0' && **s <= '9'; ++*s)
        n = n < most ? n * 10 + (**s - '0') : n;
    return n < most ? n : most;
}

static inline spmd_spec spmd_spec_parse(const char *s)
{
    spmd_spec spec = {.fill = ' ', .precision = -1};
    if (s[0] && s[1] && strchr("<>^=", s[1])) {
        spec.fill = *s++;
        spec.align = *s++;
    } else if (*s && strchr("<>^=", *s)) {
        spec.align = *s++;
    }
    if (*s && strchr("+- ", *s))
        spec.sign = *s++;
    if (*s == '#')
        spec.alternate = *s++ != 0;
    if (*s == '0') {
        s++;
        spec.fill = spec.align ? spec.fill : '0';
        spec.align = spec.align ? spec.align : '=';
    }
    spec.width = spmd_spec_number(&s, SPMD_PRINT_WIDTH);
    if (*s == ',' || *s == '_')
        spec.group = *s++;
    if (*s == '.') {
        s++;
        spec.precision = spmd_spec_number(&s, SPMD_PRINT_PRECISION);
    }
    spec.type = *s;
    return spec;
}

static inline void spmd_put(char **at, const char *end, const char *text, int64_t n)
{
    n = n < end - *at ? n : end - *at;
    memcpy(*at, text, (size_t)n);
    *at += n;
}

static inline void spmd_put_fill(char **at, const char *end, char fill, int64_t n)
{
    for (; n > 0 && *at < end; n--)
        *(*at)++ = fill;
}

/* head is the sign and prefix: '=' pads after it. */
static inline void spmd_put_padded(char **at, const char *end, const spmd_spec *spec, char align,
                                   const char *head, const char *body)
{
    int64_t pad = spec->width - (int64_t)(strlen(head) + strlen(body));
    pad = pad > 0 ? pad : 0;
    align = spec->align ? spec->align : align;
    int64_t before = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    int64_t inside = align == '=' ? pad : 0;
    spmd_put_fill(at, end, spec->fill, before);
    spmd_put(at, end, head, (int64_t)strlen(head));
    spmd_put_fill(at, end, spec->fill, inside);
    spmd_put(at, end, body, (int64_t)strlen(body));
    spmd_put_fill(at, end, spec->fill, pad - before - inside);
}

/* Separators into the whole part of `digits`, which is led by zeros up to `width` first. */
static inline void spmd_group_digits(char *digits, size_t room, char mark, int every, size_t width)
{
    char out[SPMD_PRINT_ROOM];
    size_t whole = strspn(digits, "0123456789abcdefABCDEF"), length = strlen(digits);
    size_t lead = 0;
    if (whole == 0)
        return;
    while (length + lead + (whole + lead - 1) / (size_t)every < width && lead < 256)
        lead++;
    size_t n = 0;
    for (size_t k = 0; k < whole + lead && n + 2 < sizeof out; k++) {
        if (k > 0 && (whole + lead - k) % (size_t)every == 0)
            out[n++] = mark;
        out[n++] = k < lead ? '0' : digits[k - lead];
    }
    for (size_t k = whole; k < length && n + 1 < sizeof out; k++)
        out[n++] = digits[k];
    n = n < room ? n : room - 1;
    memcpy(digits, out, n);
    digits[n] = 0;
}

static inline void spmd_put_number(char **at, const char *end, const spmd_spec *spec,
                                   const char *head, char *digits, int every)
{
    size_t room = SPMD_PRINT_ROOM, before = strlen(head);
    int zeros = spec->fill == '0' && spec->align == '=' && (size_t)spec->width > before;
    size_t width = zeros ? (size_t)spec->width - before : 0;
    if (spec->group && *digits >= '0' && *digits <= 'f')
        spmd_group_digits(digits, room, spec->group, every, width);
    spmd_put_padded(at, end, spec, '>', head, digits);
}

/* ---- floats ---- */

/* The fewest digits that read back as x, as "d.ddde±xx". */
static inline void spmd_shortest(char *out, size_t room, double x)
{
    /* Normal numbers may need 15 digits and never more than 17; subnormal ones may need fewer. */
    for (int digits = x < 2.3e-308 ? 1 : 15; digits <= 17; digits++) {
        snprintf(out, room, "%.*e", digits - 1, x);
        if (strtod(out, NULL) == x)
            return;
    }
}

/* x as a float of so many significant bits: of float32, float16, bfloat16 */
static inline double spmd_narrowed(double x, int bits)
{
    return bits == 24   ? (double)(float)x
           : bits == 11 ? (double)spmd_float16_load(spmd_float16_store_f64(x))
                        : (double)spmd_bfloat16_load(spmd_bfloat16_store((float)x));
}

/* For x, a float of so many bits: the number of the fewest digits that reads back as x. A spec that
 * says how many digits there are shows x itself. */
static inline double spmd_short(const char *text, double x, int bits)
{
    spmd_spec spec = spmd_spec_parse(text);
    char digits[32];
    for (int n = 0; n < 9 && !spec.type && spec.precision < 0; n++) {
        snprintf(digits, sizeof digits, "%.*e", n, x);
        double found = strtod(digits, NULL);
        if (spmd_narrowed(found, bits) == x)
            return found;
    }
    return x;
}

/* Digits "d.ddde±xx" in Python's style: 0.5, 1.0, 1e-07; an exponent beyond `limit` places. */
static inline void spmd_general(char *out, size_t room, const char *scientific, int limit)
{
    char digits[SPMD_PRINT_PRECISION + 8];
    int n = 0;
    const char *s = scientific;
    for (; *s && *s != 'e'; s++)
        if (*s != '.' && n < SPMD_PRINT_PRECISION + 4)
            digits[n++] = *s;
    int point = (*s ? atoi(s + 1) : 0) + 1; /* digits before the decimal point */
    while (n > 1 && digits[n - 1] == '0')
        n--;
    size_t k = 0;
    if (point <= -4 || point > limit) {
        out[k++] = digits[0];
        if (n > 1)
            out[k++] = '.';
        memcpy(out + k, digits + 1, (size_t)n - 1);
        snprintf(out + k + n - 1, room - k - (size_t)n, "e%+03d", point - 1);
        return;
    }
    if (point <= 0)
        out[k++] = '0';
    for (int i = 0; i < point; i++)
        out[k++] = i < n ? digits[i] : '0';
    out[k++] = '.';
    for (int i = point; i < 0; i++)
        out[k++] = '0';
    for (int i = point > 0 ? point : 0; i < n; i++)
        out[k++] = digits[i];
    if (out[k - 1] == '.')
        out[k++] = '0';
    out[k] = 0;
}

/* The digits of |x| as spec says. */
static inline void spmd_float_digits(char *out, const spmd_spec *spec, double x)
{
    char scientific[SPMD_PRINT_PRECISION + 32];
    char kind[2] = {spec->type == 'n' ? 'g' : spec->type, 0};
    int precision = spec->precision;
    if (x != x || x > 1.7976931348623157e308) {
        const char *name = strchr("EFG", kind[0]) && kind[0] ? "NANINF" : "naninf";
        memcpy(out, name + (x != x ? 0 : 3), 3);
        memcpy(out + 3, kind[0] == '%' ? "%" : "", kind[0] == '%' ? 2 : 1);
    } else if (kind[0] == '%') {
        int n = snprintf(out, SPMD_PRINT_ROOM - 1, "%.*f", precision < 0 ? 6 : precision, x * 100);
        memcpy(out + n, "%", 2);
    } else if (kind[0] && strchr("eEfFgG", kind[0])) {
        char format[8] = "%#.*f";
        format[4] = kind[0];
        if (!spec->alternate)
            memmove(format + 1, format + 2, 4);
        snprintf(out, SPMD_PRINT_ROOM, format, precision < 0 ? 6 : precision, x);
    } else if (precision >= 0) {
        precision = precision > 0 ? precision : 1;
        snprintf(scientific, sizeof scientific, "%.*e", precision - 1, x);
        spmd_general(out, SPMD_PRINT_ROOM, scientific, precision - 1);
    } else {
        spmd_shortest(scientific, sizeof scientific, x);
        spmd_general(out, SPMD_PRINT_ROOM, scientific, 16);
    }
}

static inline void spmd_print_f64(char **at, const char *end, const char *text, double x)
{
    spmd_spec spec = spmd_spec_parse(text);
    char digits[SPMD_PRINT_ROOM];
    int minus = x == x && __builtin_signbit(x);
    char head[2] = {minus ? '-' : spec.sign == '-' ? 0 : spec.sign, 0};
    spmd_float_digits(digits, &spec, minus ? -x : x);
    spmd_put_number(at, end, &spec, head, digits, 3);
}

static inline void spmd_print_c128(char **at, const char *end, const char *text, double re,
                                   double im)
{
    spmd_spec spec = spmd_spec_parse(text), part = spec;
    char out[2 * SPMD_PRINT_ROOM + 8], *o = out;
    const char *last = out + sizeof out - 3;
    char digits[SPMD_PRINT_ROOM];
    int plain = spec.type == 0 && spec.precision < 0;
    part.width = 0;
    int drop = plain && re == 0 && !__builtin_signbit(re); /* 2j, but (-0+2j) */
    if (plain && !drop)
        *o++ = '(';
    for (int k = drop; k < 2; k++) {
        double x = k ? im : re;
        int minus = x == x && __builtin_signbit(x);
        char head[2] = {minus ? '-' : (k && !drop) ? '+' : spec.sign == '-' ? 0 : spec.sign, 0};
        spmd_float_digits(digits, &part, minus ? -x : x);
        size_t n = strlen(digits);
        if (spec.type == 0 && n > 2 && memcmp(digits + n - 2, ".0", 2) == 0)
            digits[n - 2] = 0; /* parts that are whole numbers have no point */
        spmd_put_number(&o, last, &part, head, digits, 3);
    }
    *o++ = 'j';
    if (plain && !drop)
        *o++ = ')';
    *o = 0;
    spmd_put_padded(at, end, &spec, '>', "", out);
}

/* ---- integers, bool, text ---- */

static inline void spmd_print_integer(char **at, const char *end, const char *text, int minus,
                                      uint64_t size)
{
    spmd_spec spec = spmd_spec_parse(text);
    char digits[SPMD_PRINT_ROOM], head[4] = "";
    if (spec.type && strchr("eEfFgG%", spec.type)) {
        spmd_print_f64(at, end, text, minus ? -(double)size : (double)size);
        return;
    }
    unsigned base = spec.type == 'b' ? 2 : spec.type == 'o' ? 8 : (spec.type | 32) == 'x' ? 16 : 10;
    int n = 0, k = 64 + 1;
    digits[k] = 0;
    do
        digits[--k] = (spec.type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[size % base];
    while (size /= base);
    memmove(digits, digits + k, (size_t)(66 - k));
    if (minus || (spec.sign && spec.sign != '-'))
        head[n++] = minus ? '-' : spec.sign;
    if (spec.alternate && base != 10) {
        head[n++] = '0';
        head[n++] = spec.type;
    }
    head[n] = 0;
    spmd_put_number(at, end, &spec, head, digits, base == 10 ? 3 : 4);
}

static inline void spmd_print_i64(char **at, const char *end, const char *text, int64_t x)
{
    spmd_print_integer(at, end, text, x < 0, x < 0 ? 0 - (uint64_t)x : (uint64_t)x);
}

static inline void spmd_print_u64(char **at, const char *end, const char *text, uint64_t x)
{
    spmd_print_integer(at, end, text, 0, x);
}

static inline void spmd_print_bool(char **at, const char *end, const char *text, int x)
{
    if (*text)
        spmd_print_i64(at, end, text, x != 0);
    else
        spmd_put(at, end, x ? "True" : "False", x ? 4 : 5);
}

/* A literal piece of text between two values, or a string with a spec. */
static inline void spmd_print_text(char **at, const char *end, const char *text, const char *s)
{
    spmd_spec spec = spmd_spec_parse(text);
    char cut[SPMD_PRINT_PRECISION + 1];
    if (spec.precision >= 0 && strlen(s) > (size_t)spec.precision) {
        memcpy(cut, s, (size_t)spec.precision);
        cut[spec.precision] = 0;
        s = cut;
    }
    spmd_put_padded(at, end, &spec, '<', "", s);
}

#endif
