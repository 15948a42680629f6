declare module "*.wat" {
  const bytes: Uint8Array;
  export default bytes;
}
declare module "inline:css" {
  const text: string;
  export default text;
}
