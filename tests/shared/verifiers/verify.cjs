// Verifies what standard input holds by a library of npm: node verify.cjs LIBRARY < {"secret", "headers", "body"}
const { Webhook } = require(process.argv[2]);
const { secret, headers, body } = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
try {
  new Webhook(secret).verify(body, headers); // returns what it holds, or nothing: that depends on the library
  process.stdout.write(body);
} catch (error) {
  process.stdout.write(JSON.stringify({ refused: error.message }));
}
