#define MIDDLE 5
