// Submits a document, follows its pages as they come and fetches its result, with the client that was generated.
import { readFile } from "node:fs/promises";
import { client } from "./client/client.gen";
import { streamPages, upload, writeResult } from "./client/sdk.gen";

async function main(): Promise<void> {
  const [gateway, key, path] = process.argv.slice(2) as [string, string, string];
  client.setConfig({ baseUrl: gateway, auth: () => key, throwOnError: true });

  const file = [new File([await readFile(path)], "scan.pdf")];
  const { data: submitted } = await upload({ body: { file, request: { metadata: { ward: "7" } } }, throwOnError: true });
  const job_id = submitted.jobs[0]!.id;

  const pages: number[] = [];
  const { stream } = await streamPages({
    path: { job_id },
    onSseEvent: ({ event, data }) => {
      if (event === "page") pages.push((data as { number: number }).number);
      if (event === "error") console.error(JSON.stringify(data));
    },
    onSseError: (error) => console.error(error),
    sseMaxRetryAttempts: 1,
  });
  for await (const _ of stream);

  const { data: result } = await writeResult({ path: { job_id }, query: { format: "text", wait: 60 }, throwOnError: true });
  console.log(JSON.stringify({ job_id, pages, result }));
}

main().catch((problem: unknown) => {
  console.error(JSON.stringify(problem));
  process.exit(1);
});
