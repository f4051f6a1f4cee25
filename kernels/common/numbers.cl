// The numbers of a vector's lanes, as constants that a compiler sees through: NUMBERS_8 is 0, 1, ..., 7.

constant int16 NUMBERS_16 = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#define NUMBERS_8 NUMBERS_16.lo
#define NUMBERS_4 NUMBERS_16.lo.lo
#define NUMBERS_2 NUMBERS_16.lo.lo.lo
