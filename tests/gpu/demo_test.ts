/** The demo on a GPU. */
import { testAgreement } from "../demo/agreement.ts";

testAgreement("CUDA driver");
